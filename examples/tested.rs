//! A small application with tests for its jobs: what it enqueues, what its executors do, and both together.
//!
//! ```sh
//! bugle with-postgres -- cargo test --example tested       # its tests, on a server that is gone afterwards
//! bugle dev                                                # in another terminal: a database; prints DATABASE_URL
//! cargo run --example tested                               # the application: ships orders until Ctrl-C
//! ```

use std::time::Duration;

use bugle::{Context, Failure, Job, NewJob, Registry, Settings, Shutdown, Worker};
use serde::{Deserialize, Serialize};
use tokio_postgres::Transaction;

#[derive(Serialize, Deserialize)]
struct Ship {
    order: i64,
    address: String,
}

impl Job for Ship {
    const COMMAND: &'static str = "ship";

    fn defaults(&self, job: NewJob) -> NewJob {
        job.queue("parcels").max_attempts(3)
    }
}

/// What customers can do: in one transaction, the order and the job that ships it.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the web server of the shop, which is not shown, calls it")
)]
async fn place_order(transaction: &Transaction<'_>, item: &str, address: &str) -> bugle::Result<i64> {
    let insert = "insert into orders (item) values ($1) returning id";
    let order: i64 = transaction.query_one(insert, &[&item]).await?.get(0);
    if !address.is_empty() {
        let ship = Ship {
            order,
            address: address.into(),
        };
        ship.to_job().enqueue(transaction).await?;
    }
    Ok(order)
}

async fn ship(context: Context, parcel: Ship) -> Result<String, Failure> {
    if !parcel.address.contains(' ') {
        return Err(Failure::new("no such address").code("bad_address").not_retryable());
    }
    if parcel.address.starts_with("far") && context.attempt() == 1 {
        return Err(Failure::new("no ship today").retry_after(Duration::from_secs(3600)));
    }
    let label = context
        .step("label", async { Ok(format!("label {}", parcel.order)) })
        .await?;
    let database = context.database().await?;
    database
        .execute("update orders set shipped = true where id = $1", &[&parcel.order])
        .await?;
    Ok(label)
}

fn registry() -> Registry {
    Registry::new().job(ship)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Ok(url) = std::env::var("DATABASE_URL") else {
        anyhow::bail!("set DATABASE_URL: \"bugle dev\" prints one");
    };
    let settings = Settings::new(url).queue("parcels", 4);
    Worker::new(settings, registry()).run(Shutdown::on_signals()?).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bugle::testing::{self, JobFilter, assert_enqueued, assert_not_enqueued};
    use tokio_postgres::{Client, NoTls};

    /// A database for each test, which the server forgets when it ends.
    async fn database() -> (String, Client) {
        let server = std::env::var("BUGLE_SERVER_URL").expect("run: bugle with-postgres -- cargo test");
        let name = format!("shop_{:016x}", fastrand::u64(..));
        let owner = connect(&server).await;
        owner.batch_execute(&format!("create database {name}")).await.unwrap();
        let url = format!("{}/{name}", server.trim_end_matches("/postgres"));
        bugle::migrate(&url).await.unwrap();
        let client = connect(&url).await;
        let orders = "create table orders (id bigserial primary key, item text not null, shipped bool default false)";
        client.batch_execute(orders).await.unwrap();
        (url, client)
    }

    async fn connect(url: &str) -> Client {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    // No database: one executor on one payload.
    #[tokio::test]
    async fn an_address_that_is_none_is_not_retried() {
        let parcel = Ship {
            order: 7,
            address: "nowhere".into(),
        };

        let failure = testing::run(&registry(), &parcel).await.failure();

        assert_eq!(failure.code.as_deref(), Some("bad_address"));
        assert!(!failure.retryable);
    }

    // A transaction that is never committed: what a function enqueues.
    #[tokio::test]
    async fn an_order_with_an_address_is_shipped() {
        let (_, mut client) = database().await;
        let transaction = client.transaction().await.unwrap();

        let order = place_order(&transaction, "tea", "1 Main St").await.unwrap();
        place_order(&transaction, "a song", "").await.unwrap();

        let wanted = JobFilter::job::<Ship>().queue("parcels");
        let job = assert_enqueued(&transaction, wanted).await;
        assert_eq!(job.payload_as::<Ship>().order, order);
        assert_not_enqueued(&transaction, JobFilter::command("send_mail")).await;
    }

    // All of it: enqueue, let an hour pass, run what is due, and look at the tables.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_parcel_that_goes_far_is_shipped_an_hour_later() {
        let (url, mut client) = database().await;
        let transaction = client.transaction().await.unwrap();
        let order = place_order(&transaction, "tea", "far away").await.unwrap();
        transaction.commit().await.unwrap();

        let drained = testing::drain(&url, &registry()).await.unwrap();
        assert_eq!((drained.completed("ship"), drained.failed("ship")), (0, 1));
        let drained = testing::drain(&url, &registry()).await.unwrap();
        assert!(drained.attempts.is_empty(), "it is not due: {drained:?}");

        testing::advance(&client, Duration::from_secs(3600)).await.unwrap();
        let drained = testing::drain(&url, &registry()).await.unwrap();

        drained.assert_no_failures();
        assert_eq!(drained.completed("ship"), 1);
        let shipped = client
            .query_one("select shipped from orders where id = $1", &[&order])
            .await;
        assert!(shipped.unwrap().get::<_, bool>(0));
    }
}
