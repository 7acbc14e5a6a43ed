//! Transactions of the driver in which settings are pinned.

use tokio_postgres::{Client, IsolationLevel, Transaction};

use super::{OURS, SESSIONS, STATEMENTS, pin, refuse_switched_off_triggers};
use crate::error::Result;

/// One that may run SQL of others too: their triggers.
///
/// # Errors
/// If it cannot be begun.
#[cfg(feature = "cli")]
pub(crate) async fn transaction(client: &mut Client) -> Result<Transaction<'_>> {
    transaction_with(client, &[STATEMENTS, OURS].concat()).await
}

/// One in which no other SQL runs: as `pin_session` pins a session.
///
/// # Errors
/// If it cannot be begun, or the login comes with triggers switched off.
pub(crate) async fn own_transaction(client: &mut Client) -> Result<Transaction<'_>> {
    let transaction = transaction_with(client, &[STATEMENTS, OURS, SESSIONS].concat()).await?;
    let said = transaction.simple_query("show session_replication_role").await?;
    refuse_switched_off_triggers(&said)?;
    Ok(transaction)
}

async fn transaction_with<'a>(client: &'a mut Client, settings: &[(&str, &str)]) -> Result<Transaction<'a>> {
    let transaction = client
        .build_transaction()
        .isolation_level(IsolationLevel::ReadCommitted)
        .read_only(false)
        .deferrable(false)
        .start()
        .await?;
    transaction.batch_execute(&pin(settings, true)).await?;
    Ok(transaction)
}
