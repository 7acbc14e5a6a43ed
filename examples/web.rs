//! A small shop: a web handler stores an order and enqueues its receipt in one transaction; a worker sends the receipts.
//!
//! ```sh
//! bugle dev                        # in another terminal: a database; prints DATABASE_URL
//! cargo run --example web          # plays two customers itself, and ends
//! cargo run --example web serve    # goes on: curl -d '{"item": "tea", "mail": "ada@example.org"}' http://127.0.0.1:8080
//! ```
//!
//! Web server and worker share a process here. Nothing asks for that: they only have the database in common.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use bugle::{Bugle, Context, NewJob, Registry, Settings, Shutdown, Worker};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[derive(Deserialize)]
struct Order {
    item: String,
    mail: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL").context("set DATABASE_URL: \"bugle dev\" prints one")?;
    let goes_on = std::env::args().nth(1).is_some_and(|word| word == "serve");
    database(&url)
        .await?
        .batch_execute(
            "create table if not exists web_orders (id bigint generated always as identity, item text, mail text);
             create table if not exists stock (item text primary key, pieces int not null check (pieces >= 0));
             insert into stock values ('tea', 1000), ('coffee', 0) on conflict do nothing",
        )
        .await?;
    let listener = TcpListener::bind(("127.0.0.1", if goes_on { 8080 } else { 0 })).await?;
    let address = listener.local_addr()?;
    println!("the shop is open at http://{address}");
    tokio::spawn(serve(listener, url.clone()));

    let settings = Settings {
        database_url: url.clone(),
        ..Settings::default()
    };
    let shutdown = Shutdown::on_signals()?;
    let worker = Worker::new(settings, receipts()).run(shutdown.clone());
    let customers = async {
        if !goes_on {
            visit(address, &url).await?;
            shutdown.request();
        }
        anyhow::Ok(())
    };
    tokio::try_join!(async { Ok(worker.await?) }, customers)?;
    Ok(())
}

/// What the worker can do.
fn receipts() -> Registry {
    Registry::new().on("send_receipt", async |context: Context, order: i64| {
        let database = context.database().await?;
        let row = database
            .query_one("select item, mail from web_orders where id = $1", &[&order])
            .await?;
        let (item, mail): (String, String) = (row.get(0), row.get(1));
        Ok(json!({ "to": mail, "text": format!("Thank you for the {item}!") })) // a real one would send it
    })
}

/// The transaction of the business. Whatever fails in it takes the order and its receipt with it.
async fn place_order(url: &str, order: &Order) -> Result<Option<(i64, i64)>> {
    let mut client = database(url).await?; // a real one has a pool
    let transaction = client.transaction().await?;
    let id: i64 = transaction
        .query_one(
            "insert into web_orders (item, mail) values ($1, $2) returning id",
            &[&order.item, &order.mail],
        )
        .await?
        .get(0);
    let job = NewJob::new("send_receipt", id).enqueue(&transaction).await?;
    let taken = transaction
        .execute(
            "update stock set pieces = pieces - 1 where item = $1 and pieces > 0",
            &[&order.item],
        )
        .await?;
    if taken == 0 {
        return Ok(None); // a transaction that is dropped is rolled back
    }
    transaction.commit().await?;
    Ok(Some((id, job)))
}

async fn handle(url: Arc<str>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match Limited::new(request.into_body(), 65_536).collect().await {
        Err(_) => (StatusCode::BAD_REQUEST, json!({ "error": "the body cannot be read" })),
        Ok(body) => match serde_json::from_slice::<Order>(&body.to_bytes()) {
            Err(error) => (StatusCode::BAD_REQUEST, json!({ "error": error.to_string() })),
            Ok(order) => match place_order(&url, &order).await {
                Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, json!({ "error": error.to_string() })),
                Ok(None) => (
                    StatusCode::CONFLICT,
                    json!({ "error": format!("we are out of {}", order.item) }),
                ),
                Ok(Some((order, job))) => (StatusCode::ACCEPTED, json!({ "order": order, "job": job })),
            },
        },
    };
    let mut response = Response::new(Full::new(Bytes::from(format!("{body}\n"))));
    *response.status_mut() = status;
    Ok(response)
}

async fn serve(listener: TcpListener, url: String) -> Result<()> {
    let url: Arc<str> = url.into();
    loop {
        let (stream, _) = listener.accept().await?;
        let url = url.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| handle(url.clone(), request));
            hyper::server::conn::http1::Builder::new()
                .serve_connection(hyper_util::rt::TokioIo::new(stream), service)
                .await
        });
    }
}

/// Two customers: one is served and gets a receipt, one is not, and no trace is left of that.
async fn visit(shop: SocketAddr, url: &str) -> Result<()> {
    let (status, placed) = post(shop, json!({ "item": "tea", "mail": "ada@example.org" })).await?;
    println!("{status}: {placed}");
    let job = placed["job"].as_i64().context("the order of tea was not taken")?;
    let receipt: Value = Bugle::connect(url)?.job(job).result().await?;
    println!("job {job} is completed: {receipt}");
    ensure!(receipt["to"] == "ada@example.org", "this is not Ada's receipt");

    let (status, refused) = post(shop, json!({ "item": "coffee", "mail": "bob@example.org" })).await?;
    println!("{status}: {refused}");
    ensure!(status == 409, "coffee was sold, though there was none");
    let left = database(url)
        .await?
        .query(
            "select j.payload from bugle.jobs j where j.command = 'send_receipt'
             except all select to_jsonb(o.id) from web_orders o where o.item <> 'coffee'",
            &[],
        )
        .await?;
    ensure!(left.is_empty(), "there is a receipt without an order");
    Ok(())
}

async fn post(shop: SocketAddr, body: Value) -> Result<(u16, Value)> {
    let body = body.to_string();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: {shop}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(shop).await?;
    stream.write_all((head + &body).as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    Ok((
        head.split(' ').nth(1).context("no status")?.parse()?,
        serde_json::from_str(body)?,
    ))
}

async fn database(url: &str) -> Result<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
