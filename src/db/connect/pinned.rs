//! Settings that a role or a database can carry (`alter role … set`, `alter database … set`) and that would change what
//! our statements do, set to what they are written for: for a session that is ours, or for one transaction.
//!
//! They are not startup parameters, because poolers reject those they do not know. A session that may be a pooler's
//! is never changed beyond a transaction: the next client would be given it as we left it.

use tokio_postgres::{Client, IsolationLevel, SimpleQueryMessage, Transaction};

use super::Target;
use crate::error::{Error, Result};

/// For every statement of ours. A name that this version of Postgres does not know is left out.
const STATEMENTS: &[(&str, &str)] = &[
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_read_only", "off"),
    ("default_transaction_deferrable", "off"),
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("transaction_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
    ("exit_on_error", "off"),
    ("standard_conforming_strings", "on"),
    ("transform_null_equals", "off"),
    ("restrict_nonsystem_relation_kind", ""),
    ("row_security", "on"),
    // a query over many partitions takes longer to compile than to run
    ("jit", "off"),
    ("client_min_messages", "warning"),
];

/// Also where nobody else's SQL runs: no function of another schema takes the place of a built-in one.
const OURS: &[(&str, &str)] = &[("search_path", "pg_catalog, pg_temp")];

/// Also for a worker's own sessions, where no person's input is read.
const SESSIONS: &[(&str, &str)] = &[
    ("TimeZone", "UTC"),
    ("DateStyle", "ISO, MDY"),
    ("IntervalStyle", "postgres"),
    ("bytea_output", "hex"),
    ("extra_float_digits", "1"),
    ("array_nulls", "on"),
    ("quote_all_identifiers", "off"),
    ("plan_cache_mode", "auto"),
    ("tcp_keepalives_idle", "5"),
    ("tcp_keepalives_interval", "2"),
    ("tcp_keepalives_count", "3"),
    ("tcp_user_timeout", "10000"),
];

/// Pin a session of our own for as long as it lasts.
///
/// # Errors
/// If the server cannot be asked, or the login comes with triggers switched off.
pub(crate) async fn pin_session(client: &Client) -> Result<()> {
    let sql = format!(
        "{}; show session_replication_role",
        pin(&[STATEMENTS, OURS, SESSIONS].concat(), false)
    );
    refuse_switched_off_triggers(&client.simple_query(&sql).await?)
}

fn refuse_switched_off_triggers(said: &[SimpleQueryMessage]) -> Result<()> {
    let role = said.iter().rev().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    // only a superuser may change it, so it can be noticed and not pinned
    match role {
        None | Some("origin") => Ok(()),
        Some(other) => Err(Error::new(format!(
            "this login has session_replication_role = {other}, so triggers do not fire and jobs would not be checked"
        ))
        .hint("As a superuser: alter role … reset session_replication_role; or the same for the database.")),
    }
}

/// Pin a session that runs statements of executors too. Their search_path, time zone and formats stay as the role has
/// them.
pub(super) async fn pin_shared_session(client: &Client) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(&pin(STATEMENTS, false)).await
}

/// Run statements in one transaction with pinned settings. Nothing of it stays in the session.
///
/// # Errors
/// Those of the statements; the transaction is then rolled back.
pub(crate) async fn asked<T>(client: &Client, question: impl Future<Output = Result<T>>) -> Result<T> {
    let pins = pin(&[STATEMENTS, OURS].concat(), true);
    let begin = "begin isolation level read committed";
    let begun = client
        .batch_execute(&format!("{begin}, read write, not deferrable; {pins}"))
        .await;
    match begun {
        // a standby has no transactions that write
        Err(error) if error.code() == Some(&tokio_postgres::error::SqlState::FEATURE_NOT_SUPPORTED) => {
            client
                .batch_execute(&format!("rollback; {begin}, not deferrable; {pins}"))
                .await?;
        }
        begun => begun?,
    }
    match question.await {
        Ok(answer) => {
            client.batch_execute("commit").await?;
            Ok(answer)
        }
        Err(error) => {
            let _ = client.batch_execute("rollback").await;
            Err(error)
        }
    }
}

/// The same as a transaction of the driver.
///
/// # Errors
/// If it cannot be begun.
pub(crate) async fn transaction(client: &mut Client) -> Result<Transaction<'_>> {
    transaction_with(client, &[STATEMENTS, OURS].concat()).await
}

/// The same where nobody else's SQL runs: as [`pin_session`] pins a session.
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

fn pin(settings: &[(&str, &str)], local: bool) -> String {
    let rows: Vec<String> = settings
        .iter()
        .map(|(name, value)| format!("('{name}', '{value}')"))
        .collect();
    format!(
        "select pg_catalog.set_config(p.name, p.value, {local}) from (values {}) p (name, value) \
         where pg_catalog.current_setting(p.name, true) is not null",
        rows.join(", ")
    )
}

/// Whether a pooler in between lends a session for one transaction at a time. Two connections that are both idle then
/// share one, or one of them is given another each time. Each is asked twice in a row: a pooler that hands out its
/// sessions in turn could otherwise give each of us always the same.
///
/// # Errors
/// If the server cannot be reached.
pub(crate) async fn is_lent(target: &Target) -> Result<bool> {
    let name = "bugle (looking for a pooler)";
    let (one, other) = (target.client(name).await?, target.client(name).await?);
    let first = backend(&one).await?;
    for _ in 0..4 {
        for (client, is_first) in [(&other, false), (&one, true), (&one, true), (&other, false)] {
            if (backend(client).await? == first) != is_first {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The process that serves this session. Not prepared: see [`super::unnamed`].
async fn backend(client: &Client) -> Result<String> {
    let said = client.simple_query("select pg_catalog.pg_backend_pid()").await?;
    said.iter()
        .find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
        .ok_or_else(|| Error::new("the server did not answer"))
}
