import java.net.URI;
import java.sql.DriverManager;
import java.util.Properties;

/** An order of coffee is refused after both rows were inserted; orders of tea are placed. */
public class Story {
    static class OutOfStock extends RuntimeException {}

    public static void main(String[] arguments) throws Exception {
        var url = URI.create(System.getenv("DATABASE_URL"));
        String[] login = url.getUserInfo().split(":");
        var properties = new Properties();
        properties.setProperty("user", login[0]);
        properties.setProperty("password", login[1]);
        if (System.getenv("POOLED") != null) {
            properties.setProperty("prepareThreshold", "0");
        }
        String address = "jdbc:postgresql://%s:%d%s".formatted(url.getHost(), url.getPort(), url.getPath());
        int rounds = Integer.parseInt(System.getenv().getOrDefault("ROUNDS", "1"));
        try (var connection = DriverManager.getConnection(address, properties)) {
            try {
                Shop.placeOrder(connection, "coffee", Story::checkStock);
            } catch (OutOfStock refused) {
                System.out.println("rolled back");
            }
            for (int round = 0; round < rounds; round++) {
                var placed = Shop.placeOrder(connection, "tea", Story::checkStock);
                System.out.printf("committed %d %d%n", placed.order(), placed.job());
            }
        }
    }

    static void checkStock(String item) {
        if (item.equals("coffee")) {
            throw new OutOfStock();
        }
    }
}
