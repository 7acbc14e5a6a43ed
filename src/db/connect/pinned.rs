//! Settings of a role or a database (`alter role … set`, `alter database … set`) that would change the meaning of the
//! engine's statements are pinned to the values they are written for: for a session, or for one transaction.
//!
//! They are not startup parameters, because poolers reject unknown ones. A session that may belong to a pooler is never
//! changed beyond a transaction, because the next client would get the changed session.

#[cfg(feature = "migrate")]
mod transaction;

use std::io;

use tokio_postgres::{Client, SimpleQueryMessage};

use super::Target;
use super::refusal::refusal;
use super::replaced::ServerId;
use crate::error::{Error, Result};

#[cfg(feature = "migrate")]
pub(crate) use transaction::own_transaction;
#[cfg(feature = "cli")]
pub(crate) use transaction::transaction;

/// For every statement. Settings that this version of Postgres does not know are skipped.
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

/// For sessions without SQL of executors, so that no function of another schema shadows a built-in one.
const OURS: &[(&str, &str)] = &[("search_path", "pg_catalog, pg_temp")];

/// For a worker's own sessions, which read no input of users.
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

/// Pin the settings of a session that is not shared, and ask which server it is on.
///
/// # Errors
/// If the query fails, or triggers are disabled for the login.
pub(super) async fn pin_session(target: &Target, client: &Client) -> Result<ServerId> {
    let pins = pin(&[STATEMENTS, OURS, SESSIONS].concat(), false);
    let sql = format!("{}; {pins}; show session_replication_role", ServerId::QUESTION);
    let said = soon(target, client, &sql).await?;
    refuse_switched_off_triggers(&said)?;
    Ok(ServerId::new(first_value(&said).unwrap_or_default()))
}

fn refuse_switched_off_triggers(said: &[SimpleQueryMessage]) -> Result<()> {
    let role = said.iter().rev().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    // only a superuser may change it, so it can only be detected
    match role {
        None | Some("origin") => Ok(()),
        Some(other) => Err(Error::new(format!(
            "this login has session_replication_role = {other}: triggers do not fire, so jobs would not be validated"
        ))
        .with_hint("As a superuser: alter role … reset session_replication_role; or the same for the database.")),
    }
}

/// Pin a session that also runs statements of executors. Its search_path, time zone and formats are not changed.
pub(super) async fn pin_shared_session(target: &Target, client: &Client) -> Result<ServerId, tokio_postgres::Error> {
    let sql = format!("{}; {}", ServerId::QUESTION, pin(STATEMENTS, false));
    let said = soon(target, client, &sql).await?;
    Ok(ServerId::new(first_value(&said).unwrap_or_default()))
}

/// A part of connecting, and so within its time limit.
async fn soon(target: &Target, client: &Client, sql: &str) -> Result<Vec<SimpleQueryMessage>, tokio_postgres::Error> {
    match tokio::time::timeout(target.timeout, client.simple_query(sql)).await {
        Ok(said) => said,
        Err(_) => Err(refusal(io::ErrorKind::TimedOut, "timeout").await),
    }
}

/// Of the first row.
pub(super) fn first_value(said: &[SimpleQueryMessage]) -> Option<&str> {
    said.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    })
}

/// Run statements in one transaction with pinned settings. The session is not changed.
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
        // a standby rejects read write transactions
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

/// Whether there is a pooler in transaction mode in between. Then two idle connections share a session, or one of them
/// gets different sessions. Each is asked twice in a row, because a pooler that assigns its sessions in turn could
/// otherwise give each connection the same session every time.
///
/// # Errors
/// If the server cannot be reached.
pub(crate) async fn is_lent(target: &Target) -> Result<bool> {
    let name = "bugle (pooler detection)";
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

/// The backend process of this session. Not prepared: see [`super::unnamed`].
async fn backend(client: &Client) -> Result<String> {
    let said = client.simple_query("select pg_catalog.pg_backend_pid()").await?;
    said.iter()
        .find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
        .ok_or_else(|| Error::new("the server did not reply"))
}
