//! `bugle web --demo`: a shop on a private server, with running workers, for people who want to see the pages.

use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::enqueue::NewJob;
use crate::config::Settings;
use crate::db::connect::{self, Target};
use crate::error::Error;
use crate::execute::context::Context;
use crate::execute::executor::{Failure, IntoOutcome, Outcome};
use crate::execute::registry::Registry;
use crate::private_postgres::{Options, PrivatePostgres};
use crate::schema;
use crate::worker::Worker;
use crate::worker::shutdown::Shutdown;

const STORY: &str = include_str!("shop.sql");
/// How long the shop waits between two customers.
const PAUSE: Duration = Duration::from_millis(1400);

/// The shop, open until it is dropped.
pub(in crate::cli) struct Shop {
    server: PrivatePostgres,
}

impl Shop {
    /// Start a server, install the schema and tell the story so far. Blocks for a few seconds.
    pub fn open(obtain: bool) -> Result<Shop> {
        Ok(Shop {
            server: PrivatePostgres::start(&Options {
                obtain,
                settings: vec![("timezone".into(), "UTC".into())],
                ..Options::of_bugle()?
            })?,
        })
    }

    /// The database as this login sees it; none for the owner.
    fn target(&self, login: Option<&str>) -> Result<Target> {
        let owner = connect::parse_given_by(
            "the private server",
            &(self.server.url("postgres") + super::NOTHING_ELSE),
        )?;
        Ok(match login {
            Some(login) => owner.with_login(login, "unused"),
            None => owner,
        })
    }

    /// The database as the person sees it who opens the pages.
    pub fn person(&self) -> Result<Target> {
        self.target(Some("ada"))
    }

    /// Install the schema, and the story so far.
    pub async fn furnish(&self) -> Result<()> {
        let owner = self.target(None)?;
        schema::migrate(&owner).await?;
        let client = owner.client("the shop").await?;
        client
            .batch_execute("set client_min_messages = warning")
            .await
            .map_err(Error::from)?;
        client.batch_execute(STORY).await.map_err(Error::from)?;
        Ok(())
    }

    /// Run two workers, and let customers come, until it is time to stop.
    pub async fn serve(&self, shutdown: Shutdown) -> Result<()> {
        let url = self.target(Some("shop_worker"))?.connection_string();
        let worker = |name: &str| {
            let mut settings = Settings::new(&url)
                .name(name)
                .drain(Duration::from_secs(1))
                .workdir(self.server.host().join("work"));
            for (queue, slots) in [
                ("default", 6),
                ("mail", 8),
                ("payments", 4),
                ("exports", 4),
                ("photos", 3),
                ("webhooks", 6),
                ("metrics", 1),
                ("campaigns", 2),
            ] {
                settings = settings.queue(queue, slots);
            }
            Worker::new(settings, executors())
        };
        tokio::select! {
            ended = worker("shop-1").run(shutdown.clone()) => { ended?; }
            ended = worker("shop-2").run(shutdown.clone()) => { ended?; }
            ended = self.welcome_customers() => ended?,
        }
        Ok(())
    }

    /// Each customer buys something: jobs, like those of an application.
    async fn welcome_customers(&self) -> Result<()> {
        let client = self.target(Some("ada"))?.client("shop").await?;
        for order in 92_000_i64.. {
            let buy = format!(
                "insert into bugle.jobs (command, queue, payload) values \
                 ('charge_card', 'payments', '{{\"order\": {order}, \"cents\": {}}}'), \
                 ('send_receipt', 'mail', '{{\"order\": {order}, \"to\": \"customer-{}@example.org\"}}'), \
                 ('deliver_webhook', 'webhooks', \
                   '{{\"endpoint\": \"hooks.example.net/{}\", \"event\": \"order.paid\", \"order\": {order}}}')",
                990 + order % 80 * 100,
                order % 500,
                order % 7,
            );
            client.batch_execute(&buy).await.map_err(Error::from)?;
            if order % 9 == 0 {
                let photo =
                    format!("select bugle.enqueue('prepare_photo', '{{\"photo\": \"p/{order}.jpg\"}}', 'photos')");
                client.batch_execute(&photo).await.map_err(Error::from)?;
            }
            if order % 40 == 0 {
                let tenant = ["northwind", "acme", "globex"][fastrand::usize(..3)];
                let export =
                    format!("select bugle.enqueue('export_orders', '{{\"tenant\": \"{tenant}\"}}', 'exports')");
                client.batch_execute(&export).await.map_err(Error::from)?;
            }
            tokio::time::sleep(PAUSE.mul_f64(0.4 + 1.2 * fastrand::f64())).await;
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct Export {
    tenant: String,
}

#[derive(Deserialize)]
struct Delivery {
    endpoint: String,
}

#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    part: String,
    #[serde(default)]
    fails: bool,
    seconds: Option<f64>,
}

/// What the shop's workers do: mostly, take their time.
fn executors() -> Registry {
    Registry::new()
        .on("send_receipt", async |_: Context, mail: Value| {
            work(60, 240).await;
            if fastrand::u8(..100) < 2 {
                return Err(Failure::new("421 4.3.2 mx.example.org: too many connections").code("smtp_421"));
            }
            Ok(json!({ "accepted": true, "to": mail["to"] }))
        })
        .on("send_newsletter", async |_: Context, _: Value| {
            work(60, 200).await;
            Ok(json!({ "accepted": true }))
        })
        .on("charge_card", async |_: Context, _: Value| {
            work(120, 900).await;
            if fastrand::u8(..100) < 62 {
                let said =
                    "POST https://api.payments.example/v1/charges: 503 Service Unavailable: upstream connect error";
                return Err(Failure::new(said).code("http_503"));
            }
            Ok(json!({ "charge": format!("ch_{:016x}", fastrand::u64(..)) }))
        })
        .on("refund", async |_: Context, _: Value| {
            Ok(Outcome::Wait {
                token: None,
                at_most: Some(Duration::from_secs(3 * 86_400)),
            })
        })
        .on("export_orders", async |context: Context, export: Export| {
            let parts = 40;
            for part in 0..parts {
                work(300, 1200).await;
                let percent = 100.0 * (part + 1) as f32 / parts as f32;
                context
                    .progress(percent, &format!("{} of {parts} files", part + 1))
                    .await?;
            }
            Ok(json!({ "tenant": export.tenant, "rows": fastrand::u32(2_000..90_000) }))
        })
        .on("fetch_photo", async |_: Context, photo: Value| {
            work(300, 900).await;
            Ok(photo)
        })
        .on("resize_photo", async |_: Context, photo: Value| {
            work(600, 2200).await;
            if photo["photo"].as_str().is_some_and(|name| name.ends_with(".heic")) {
                let said = "cannot decode the image: unsupported feature: HEIC grid";
                return Err(Failure::new(said).code("bad_image").not_retryable());
            }
            Ok(json!({ "sizes": [320, 960, 1920] }))
        })
        .on("upload_photo", async |_: Context, _: Value| {
            work(300, 800).await;
            Ok(json!({ "sizes": [320, 960, 1920] }))
        })
        .on("deliver_webhook", async |_: Context, delivery: Delivery| {
            work(60, 400).await;
            if delivery.endpoint.ends_with("slow-partner") {
                let said = format!("POST https://{}: timed out after 10 s", delivery.endpoint);
                return Err(Failure::new(said).code("timeout"));
            }
            Ok(json!({ "status": 200 }))
        })
        .on("import_catalog", async |context: Context, catalog: Value| {
            let pages = catalog["pages"].as_i64().unwrap_or(5);
            if context.children().await?.is_empty() {
                work(800, 1500).await;
                let children = (1..=pages).map(|page| NewJob::new("import_page", json!({ "page": page })));
                return Ok(context.spawn(children).await?);
            }
            work(1500, 2500).await;
            Ok(json!({ "pages": pages }).into_outcome())
        })
        .on("import_page", async |_: Context, _: Value| {
            work(2000, 9000).await;
            Ok(json!({ "products": fastrand::u32(20..80) }))
        })
        .on("collect_metrics", async |_: Context, _: Value| {
            work(10, 40).await;
            Ok(())
        })
        .on("check_prices", async |_: Context, _: Value| Ok(()))
        .on("sync_stock", async |_: Context, _: Value| {
            work(2000, 5000).await;
            Ok(json!({ "changed": fastrand::u32(..40) }))
        })
        .on("close_books", async |_: Context, part: Part| {
            match part.seconds {
                Some(seconds) => tokio::time::sleep(Duration::from_secs_f64(seconds)).await,
                None => work(900, 4000).await,
            }
            if part.fails {
                let said = "the VAT rates of 3 countries are missing: EE, LV, LT";
                return Err(Failure::new(said).code("missing_rates").not_retryable());
            }
            Ok(json!({ "part": part.part, "rows": fastrand::u32(100..9_000) }))
        })
}

/// Take some time, in milliseconds.
async fn work(from: u64, to: u64) {
    tokio::time::sleep(Duration::from_millis(fastrand::u64(from..to))).await;
}
