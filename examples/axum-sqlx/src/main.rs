//! A shop: handlers of axum store an order and enqueue its receipt in one transaction of sqlx; a worker in the same
//! process sends the receipts.

use std::error::Error;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use bugle::{Failure, Job, NewJob, Shutdown, Worker};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::net::TcpListener;

/// A type of job: its payload, its command, and the defaults of such jobs.
#[derive(Serialize, Deserialize)]
struct SendReceipt {
    order: i64,
}

impl Job for SendReceipt {
    const COMMAND: &'static str = "send_receipt";

    fn defaults(&self, job: NewJob) -> NewJob {
        job.queue("mail").max_attempts(5)
    }
}

/// What handlers and executors share.
#[derive(Clone)]
struct App {
    pool: PgPool,
}

async fn send_receipt(context: bugle::Context<App>, job: SendReceipt) -> Result<String, Failure> {
    let item: String = sqlx::query_scalar("select item from shop_orders where id = $1")
        .bind(job.order)
        .fetch_one(&context.state().pool)
        .await?;
    Ok(format!("Thank you for the {item}!")) // a real one would send it
}

#[derive(Deserialize)]
struct Order {
    item: String,
}

#[derive(Serialize)]
struct Placed {
    order: i64,
    job: i64,
}

async fn place_order(
    State(app): State<App>,
    Json(order): Json<Order>,
) -> Result<(StatusCode, Json<Placed>), ShopError> {
    let mut transaction = app.pool.begin().await?;
    let id: i64 = sqlx::query_scalar("insert into shop_orders (item) values ($1) returning id")
        .bind(&order.item)
        .fetch_one(&mut *transaction)
        .await?;
    let job: i64 = sqlx::query_scalar("select bugle.enqueue_job($1)")
        .bind(SendReceipt { order: id }.to_job().to_json()?)
        .fetch_one(&mut *transaction)
        .await?;
    let taken = sqlx::query("update shop_stock set pieces = pieces - 1 where item = $1 and pieces > 0")
        .bind(&order.item)
        .execute(&mut *transaction)
        .await?;
    if taken.rows_affected() == 0 {
        return Err(ShopError::SoldOut(order.item)); // rolled back: neither the order nor its job exists
    }
    transaction.commit().await?;
    Ok((StatusCode::ACCEPTED, Json(Placed { order: id, job })))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("DATABASE_URL").map_err(|_| "set DATABASE_URL: \"bugle dev\" prints one")?;
    let address = std::env::var("ADDRESS").unwrap_or("127.0.0.1:8080".into());
    let pool = PgPool::connect(&url).await?;
    sqlx::raw_sql(
        "create table if not exists shop_orders (id bigint generated always as identity, item text not null);
         create table if not exists shop_stock (item text primary key, pieces int not null);
         insert into shop_stock values ('tea', 1000), ('coffee', 0) on conflict do nothing",
    )
    .execute(&pool)
    .await?;
    let app = App { pool };

    let shutdown = Shutdown::on_signals()?;
    let worker = Worker::builder(&url)
        .queue("mail", 4)
        .state(app.clone())
        .job(send_receipt)
        .run(shutdown.clone());

    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let router = Router::new().route("/orders", post(place_order)).with_state(app);
    let server = axum::serve(listener, router).with_graceful_shutdown(async move { shutdown.requested().await });

    let worker = async { worker.await.map_err(Box::<dyn Error>::from) };
    let server = async { server.await.map_err(Box::<dyn Error>::from) };
    tokio::try_join!(worker, server)?;
    Ok(())
}

/// Why an order was not placed.
enum ShopError {
    SoldOut(String),
    Other(Box<dyn Error>),
}

impl<E: Error + 'static> From<E> for ShopError {
    fn from(error: E) -> Self {
        ShopError::Other(error.into())
    }
}

impl IntoResponse for ShopError {
    fn into_response(self) -> Response {
        match self {
            ShopError::SoldOut(item) => (StatusCode::CONFLICT, format!("we are out of {item}\n")),
            ShopError::Other(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
        .into_response()
    }
}
