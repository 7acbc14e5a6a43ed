//! Orders of tea are placed; orders of coffee are refused after both rows were inserted.

#[cfg(feature = "diesel")]
mod shop_diesel;
mod shop_sea_orm;
mod shop_sqlx;

use std::fmt;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Debug)]
struct OutOfStock;

impl fmt::Display for OutOfStock {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("out of stock")
    }
}

impl std::error::Error for OutOfStock {}

fn check_stock(item: &str) -> Result<()> {
    match item {
        "coffee" => Err(OutOfStock.into()),
        _ => Ok(()),
    }
}

fn told(placed: Result<(i64, i64)>) -> Result<()> {
    match placed {
        Ok((order, job)) => println!("committed {order} {job}"),
        Err(error) if error.is::<OutOfStock>() => println!("rolled back"),
        Err(error) => return Err(error),
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL")?;
    let rounds: usize = std::env::var("ROUNDS").map_or(Ok(1), |rounds| rounds.parse())?;
    let is_pooled = std::env::var_os("POOLED").is_some();
    let items = ["tea", "coffee"].into_iter().cycle().take(2 * rounds);
    match std::env::args().nth(1).as_deref() {
        Some("sqlx") => {
            let mut options: sqlx::postgres::PgConnectOptions = url.parse()?;
            if is_pooled {
                options = options.statement_cache_capacity(0);
            }
            let pool = sqlx::PgPool::connect_with(options).await?;
            for item in items {
                told(shop_sqlx::place_order(&pool, item, check_stock).await)?;
            }
        }
        Some("sea-orm") => {
            let mut options = sea_orm::ConnectOptions::new(url);
            if is_pooled {
                options.map_sqlx_postgres_opts(|options| options.statement_cache_capacity(0));
            }
            let database = sea_orm::Database::connect(options).await?;
            for item in items {
                told(shop_sea_orm::place_order(&database, item, check_stock).await)?;
            }
        }
        #[cfg(feature = "diesel")]
        Some("diesel") => {
            use diesel::connection::{CacheSize, Connection};
            let mut connection = diesel::PgConnection::establish(&url)?;
            if is_pooled {
                connection.set_prepared_statement_cache_size(CacheSize::Disabled);
            }
            for item in items {
                told(shop_diesel::place_order(&mut connection, item, check_stock))?;
            }
        }
        other => panic!("{other:?} is not built"),
    }
    Ok(())
}
