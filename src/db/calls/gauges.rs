//! Numbers about the whole database, for the metrics.

use tokio_postgres::GenericClient;

use crate::db::connect::Unnamed;
use crate::error::Result;

/// One number about the whole database.
#[derive(Debug, Clone)]
pub struct Gauge {
    pub name: String,
    pub queue: Option<String>,
    pub label: Option<String>,
    pub value: f64,
}

pub async fn gauges(client: &impl GenericClient) -> Result<Vec<Gauge>> {
    let rows = client
        .ask("select name, queue, label, value from bugle.gauges()", &[])
        .await?;
    let gauge = |row: &tokio_postgres::Row| Gauge {
        name: row.get(0),
        queue: row.get(1),
        label: row.get(2),
        value: row.get(3),
    };
    Ok(rows.iter().map(gauge).collect())
}
