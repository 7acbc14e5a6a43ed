//! An order of coffee is refused after both rows were inserted; orders of tea are placed.

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
    let items = ["coffee"].into_iter().chain(std::iter::repeat_n("tea", rounds));
    match std::env::args().nth(1).as_deref() {
        Some("sqlx") => {
            let pool = sqlx::PgPool::connect(&url).await?;
            for item in items {
                told(shop_sqlx::place_order(&pool, item, check_stock).await)?;
            }
        }
        Some("sea-orm") => {
            let database = sea_orm::Database::connect(url).await?;
            for item in items {
                told(shop_sea_orm::place_order(&database, item, check_stock).await)?;
            }
        }
        #[cfg(feature = "diesel")]
        Some("diesel") => {
            use diesel::connection::{CacheSize, Connection};
            let mut connection = diesel::PgConnection::establish(&url)?;
            if std::env::var_os("POOLED").is_some() {
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
