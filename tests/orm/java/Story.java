import java.net.URI;
import java.sql.DriverManager;
import java.util.Properties;

/** Orders of tea are placed; orders of coffee are refused after both rows were inserted. */
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
            for (int round = 0; round < rounds; round++) {
                var placed = Shop.placeOrder(connection, "tea", Story::checkStock);
                System.out.printf("committed %d %d%n", placed.order(), placed.job());
                try {
                    Shop.placeOrder(connection, "coffee", Story::checkStock);
                } catch (OutOfStock refused) {
                    System.out.println("rolled back");
                }
            }
        }
    }

    static void checkStock(String item) {
        if (item.equals("coffee")) {
            throw new OutOfStock();
        }
    }
}
