//! Applying a file of `sql/` without a lock on what it does not change.
//!
//! Functions are replaced without a lock on any relation. Replacing a view locks out its users until the transaction
//! ends, and claims and completions use several views in one transaction: under load, replacing one view after another
//! ends in deadlocks. So a view is replaced only if its definition changed.

use tokio_postgres::Transaction;

use crate::db::connect::Unnamed;
use crate::error::{Error, Result};

/// A statement that creates a view, between the rest of its file.
#[derive(Debug, PartialEq)]
struct View<'a> {
    before: &'a str,
    statement: &'a str,
    name: &'a str,
    query: &'a str,
    after: &'a str,
}

pub(super) async fn apply(transaction: &Transaction<'_>, sql: &str) -> Result<()> {
    let mut rest = sql;
    while let Some(view) = first_view(rest) {
        execute(transaction, view.before).await?;
        if !is_up_to_date(transaction, &view).await? {
            execute(transaction, view.statement).await?;
        }
        rest = view.after;
    }
    execute(transaction, rest).await
}

async fn execute(transaction: &Transaction<'_>, sql: &str) -> Result<()> {
    transaction.batch_execute(sql).await.map_err(Error::from)
}

/// The first view of a file, whose statement ends at the first semicolon at the end of a line.
fn first_view(sql: &str) -> Option<View<'_>> {
    const CREATE: &str = "create or replace view ";
    let start = match sql.starts_with(CREATE) {
        true => 0,
        false => sql.find(&format!("\n{CREATE}"))? + 1,
    };
    let end = start + sql[start..].find(";\n")? + 2;
    let statement = &sql[start..end];
    let (name, query) = statement[CREATE.len()..].split_once(" as\n")?;
    Some(View {
        before: &sql[..start],
        statement,
        name,
        query,
        after: &sql[end..],
    })
}

/// Whether the database has this view already: the server compares both as it has parsed them.
async fn is_up_to_date(transaction: &Transaction<'_>, view: &View<'_>) -> Result<bool> {
    let is_there = "select pg_catalog.to_regclass($1) is not null";
    if !transaction.ask_one(is_there, &[&view.name]).await?.get::<_, bool>(0) {
        return Ok(false);
    }
    execute(transaction, &format!("create view bugle.candidate as\n{}", view.query)).await?;
    let is_same = "select pg_catalog.pg_get_viewdef(pg_catalog.to_regclass($1)) \
                   = pg_catalog.pg_get_viewdef('bugle.candidate'::pg_catalog.regclass)";
    let is_same = transaction.ask_one(is_same, &[&view.name]).await?.get(0);
    execute(transaction, "drop view bugle.candidate").await?;
    Ok(is_same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::SQL;

    #[test]
    fn every_view_of_the_schema_is_recognized() {
        for (file, sql) in SQL {
            let mut rest = *sql;
            let mut recognized = 0;
            while let Some(view) = first_view(rest) {
                recognized += 1;
                rest = view.after;
            }
            assert_eq!(recognized, sql.matches("create or replace view").count(), "{file}");
        }
    }

    #[test]
    fn a_view_is_taken_out_of_its_file() {
        let sql = "select 1;\ncreate or replace view bugle.one as\nselect 1;\ncomment on view bugle.one is 'one';\n";
        let view = first_view(sql).expect("a view");
        assert_eq!(view.before, "select 1;\n");
        assert_eq!((view.name, view.query), ("bugle.one", "select 1;\n"));
        assert_eq!(view.after, "comment on view bugle.one is 'one';\n");
        assert_eq!(first_view(view.after), None);
    }
}
