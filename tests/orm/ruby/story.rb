# Orders of tea are placed; orders of coffee are refused after both rows were inserted.
require "active_record"
require_relative "shop"

class OutOfStock < StandardError
end

options = { url: ENV.fetch("DATABASE_URL") }
options.update(prepared_statements: false, advisory_locks: false) if ENV.key?("POOLED")
ActiveRecord::Base.establish_connection(options)
check_stock = ->(item) { raise OutOfStock if item == "coffee" }
ENV.fetch("ROUNDS", "1").to_i.times do
  puts "committed #{place_order("tea", check_stock).join(" ")}"
  begin
    place_order("coffee", check_stock)
  rescue OutOfStock
    puts "rolled back"
  end
end
