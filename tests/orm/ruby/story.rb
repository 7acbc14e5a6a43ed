# An order of coffee is refused after both rows were inserted; orders of tea are placed.
require "active_record"
require_relative "shop"

class OutOfStock < StandardError
end

options = { url: ENV.fetch("DATABASE_URL") }
options.update(prepared_statements: false, advisory_locks: false) if ENV.key?("POOLED")
ActiveRecord::Base.establish_connection(options)
check_stock = ->(item) { raise OutOfStock if item == "coffee" }
begin
  place_order("coffee", check_stock)
rescue OutOfStock
  puts "rolled back"
end
ENV.fetch("ROUNDS", "1").to_i.times do
  order, job = place_order("tea", check_stock)
  # a SELECT is what Rails prepares
  raise "order #{order} is not there" unless Order.find(order).item == "tea"
  puts "committed #{order} #{job}"
end
