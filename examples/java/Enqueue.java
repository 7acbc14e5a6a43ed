import java.net.URI;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.Properties;
import java.util.Set;

/**
 * Enqueue in the transaction of the business: both are there, or neither.
 *
 * <pre>DATABASE_URL=postgres://app:secret@localhost/shop java -cp postgresql.jar Enqueue.java</pre>
 */
public class Enqueue {
    record Placed(long order, long job) {}

    record Job(String state, String result) {
        boolean hasEnded() {
            return Set.of("completed", "failed", "cancelled").contains(state);
        }
    }

    public static void main(String[] arguments) throws Exception {
        try (Connection connection = connect(System.getenv("DATABASE_URL"))) {
            try (var statement = connection.createStatement()) {
                statement.execute("create table if not exists orders (id bigint generated always as identity, item text not null)");
            }
            connection.setAutoCommit(false);

            Placed kept = placeOrder(connection, "tea", "Ada");
            connection.commit();
            System.out.printf("order %d and job %d are committed%n", kept.order, kept.job);

            Placed undone = placeOrder(connection, "coffee", "Bob");
            connection.rollback();
            connection.setAutoCommit(true);
            if (job(connection, undone.job) != null) {
                throw new IllegalStateException("job " + undone.job + " is there, though its transaction was rolled back");
            }
            System.out.printf("order %d was rolled back, and job %d with it%n", undone.order, undone.job);

            Job ended = end(connection, kept.job);
            System.out.printf("job %d is %s: %s%n", kept.job, ended.state, ended.result);
            if (!ended.state.equals("completed")) {
                throw new IllegalStateException("job " + kept.job + " is not completed");
            }
        }
    }

    /** The order and the job that follows from it, in the transaction that is open. */
    static Placed placeOrder(Connection connection, String item, String name) throws SQLException {
        long order = insert(connection, "insert into orders (item) values (?) returning id", item);
        // with a JSON library: its text, as here
        String payload = "{\"name\": \"%s\", \"order\": %d}".formatted(name, order);
        long job = insert(connection, "insert into bugle.jobs (command, payload) values ('hello', ?::jsonb) returning id", payload);
        return new Placed(order, job);
    }

    static long insert(Connection connection, String sql, String value) throws SQLException {
        try (var statement = connection.prepareStatement(sql)) {
            statement.setString(1, value);
            var rows = statement.executeQuery();
            rows.next();
            return rows.getLong(1);
        }
    }

    static Job job(Connection connection, long id) throws SQLException {
        try (var statement = connection.prepareStatement("select state, result from bugle.job(?)")) {
            statement.setLong(1, id);
            var rows = statement.executeQuery();
            return rows.next() ? new Job(rows.getString(1), rows.getString(2)) : null;
        }
    }

    /** Waits until a job has ended. It takes a worker that serves the command hello, such as that of "bugle dev". */
    static Job end(Connection connection, long id) throws Exception {
        for (int tries = 0; tries < 600; tries++) {
            Job job = job(connection, id);
            if (job.hasEnded()) {
                return job;
            }
            Thread.sleep(50);
        }
        throw new IllegalStateException("job " + id + " has not ended after 30 seconds: does a worker serve the command hello?");
    }

    /** JDBC takes no postgres:// URL, and wants the user beside it. */
    static Connection connect(String url) throws SQLException {
        URI uri = URI.create(url);
        String[] login = uri.getUserInfo().split(":", 2);
        Properties properties = new Properties();
        properties.setProperty("user", login[0]);
        properties.setProperty("password", login.length > 1 ? login[1] : "");
        String port = uri.getPort() < 0 ? "" : ":" + uri.getPort();
        String query = uri.getRawQuery() == null ? "" : "?" + uri.getRawQuery();
        return DriverManager.getConnection("jdbc:postgresql://" + uri.getHost() + port + uri.getRawPath() + query, properties);
    }
}
