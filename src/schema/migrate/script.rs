//! The SQL that brings a database from one revision to that of this binary, for other migration tools.

use refinery::Migration;

use super::{HISTORY, HISTORY_COLUMNS, REVISION, SQL, note_migration, note_version, runner};
use crate::error::{Error, Result};

/// The last migration of each revision, from revision 1 on.
const LAST_MIGRATIONS: [i32; REVISION as usize] = [11];

/// The SQL that brings a database from revision `from` to [`REVISION`]; `from` is 0 for a database without the schema.
///
/// It is one statement, so it happens as a whole or not at all: in a transaction of another tool, or without one. It
/// checks that the database has the revision `from`, and records what it did as [`migrate`](super::migrate) does, which
/// then finds nothing to do. From [`REVISION`] itself it only replaces the functions, views, triggers and grants.
///
/// # Errors
/// If this version of Bugle does not know the revision `from`.
pub fn script(from: i32) -> Result<String> {
    let done = match from {
        0 => 0,
        1..=REVISION => LAST_MIGRATIONS[from as usize - 1],
        _ => {
            return Err(Error::new(format!(
                "unknown schema revision {from}: this version of bugle knows the revisions 0 to {REVISION}"
            ))
            .with_hint(
                "0 stands for a database without the schema. Otherwise: select revision from bugle.schema_version; \
                 for a newer revision, use a newer bugle.",
            ));
        }
    };
    Ok(compose(from, done))
}

/// From a revision whose last migration is `done`.
fn compose(from: i32, done: i32) -> String {
    let runner = runner();
    let migrations = runner.get_migrations();
    let missing = migrations.iter().filter(|migration| migration.version() > done);
    let mut parts: Vec<(String, String)> = missing
        .map(|migration: &Migration| {
            let sql = migration.sql().unwrap_or_default().to_owned() + &note_migration(migration);
            (format!("migrations/{migration}.sql"), sql)
        })
        .collect();
    parts.extend(SQL.iter().map(|(name, sql)| (format!("sql/{name}"), (*sql).to_owned())));
    parts.push(("revision".into(), note_version() + "\n"));
    let begin = match from {
        0 => {
            // with the first days of history: no session is there yet that this could delay
            let upkeep = "select bugle.upkeep() from generate_series(1, 6);\n";
            parts.push(("upkeep".into(), upkeep.into()));
            format!("{NO_SCHEMA_YET}  create table {HISTORY} {HISTORY_COLUMNS};\n")
        }
        _ => REVISION_IS.replace("FROM", &from.to_string()),
    };
    let parts: String = parts
        .iter()
        .map(|(name, sql)| format!("\n  v_part := '{name}';\n  execute $bugle_part$\n{sql}$bugle_part$;\n"))
        .collect();
    HEAD.replace("FROM", &from.to_string())
        .replace("REVISION", &REVISION.to_string())
        + &begin
        + &parts
        + TAIL
}

const HEAD: &str = "\
-- Bugle: from schema revision FROM to REVISION, as printed by `bugle migrate sql --from FROM`.
-- One statement: it happens as a whole or not at all, inside a transaction or without one.
do $bugle$
declare
  v_search_path constant text := current_setting('search_path');
  v_lock_timeout constant text := current_setting('lock_timeout');
  v_part text;
  v_hint text;
begin
  perform set_config('search_path', 'pg_catalog, pg_temp', true);
";

/// As `bugle migrate` has it: the schema may be there already, but nothing in it.
const NO_SCHEMA_YET: &str = "
  if current_setting('server_encoding') <> 'UTF8' then
    raise exception 'the database has the encoding %, and Bugle needs UTF8', current_setting('server_encoding');
  end if;
  if to_regnamespace('bugle') is null then
    create schema bugle;
  end if;
  if exists (select from pg_class c where c.relnamespace = 'bugle'::regnamespace)
    or exists (select from pg_proc p where p.pronamespace = 'bugle'::regnamespace) then
    raise exception 'the schema bugle is not empty, and this script creates it'
      using hint = 'To upgrade it, look up its revision with: select revision from bugle.schema_version; '
        'and print the script for that one: bugle migrate sql --from REVISION';
  end if;
";

/// The lock is that of `bugle migrate`. A session that waits for a lock on the jobs makes all others wait behind it:
/// not for long.
const REVISION_IS: &str = "
  if to_regclass('bugle.schema_version') is null then
    raise exception 'this database has no Bugle schema'
      using hint = 'Print the script that creates it: bugle migrate sql --from 0';
  end if;
  perform set_config('lock_timeout', '5s', true);
  lock table bugle.migrations in share row exclusive mode;
  if (select v.revision from bugle.schema_version v) is distinct from FROM then
    raise exception 'the schema has revision %, and this script starts at FROM',
        (select v.revision from bugle.schema_version v)
      using hint = 'Print another script: bugle migrate sql --from '
        || (select v.revision from bugle.schema_version v);
  end if;
";

/// An error names the part, instead of quoting all of its text as context.
const TAIL: &str = "
  perform set_config('search_path', v_search_path, true);
  perform set_config('lock_timeout', v_lock_timeout, true);
exception when others then
  get stacked diagnostics v_hint = pg_exception_hint;
  raise exception using
    errcode = sqlstate,
    message = concat(sqlerrm, ' (' || v_part || ')'),
    hint = case
      when v_hint <> '' then v_hint
      when sqlstate = '55P03' then 'Another session holds a lock on the tables. Nothing was changed: run it again.'
      else 'Nothing was changed.'
    end;
end
$bugle$;
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_migration_of_this_revision_is_listed() {
        let last = runner().get_migrations().iter().map(Migration::version).max();

        assert_eq!(
            LAST_MIGRATIONS.last().copied(),
            last,
            "LAST_MIGRATIONS names another last migration for revision {REVISION}"
        );
        assert!(LAST_MIGRATIONS.is_sorted());
    }

    #[test]
    fn an_upgrade_has_only_the_migrations_that_are_missing() {
        let last = *LAST_MIGRATIONS.last().unwrap();

        let whole = script(0).unwrap();
        let upgrade = compose(1, last - 1);

        assert_eq!(whole.matches("'migrations/").count() as i32, last);
        assert_eq!(upgrade.matches("'migrations/").count(), 1);
        assert!(upgrade.contains(&format!("'migrations/V{last}__")), "the last one");
        assert_eq!(upgrade.matches("'sql/").count(), SQL.len());
    }

    /// Flyway and Liquibase would fill them in.
    #[test]
    fn the_script_has_no_placeholders_of_other_tools_and_ends_only_at_its_end() {
        let script = script(0).unwrap();

        assert!(!script.contains("${"));
        assert_eq!(script.matches("$bugle$").count(), 2);
        let parts = script.matches("v_part := '").count();
        assert_eq!(script.matches("$bugle_part$").count(), 2 * parts);
    }

    #[test]
    fn a_revision_that_is_not_known_is_refused_with_what_to_do() {
        for unknown in [-1, REVISION + 1, i32::MAX] {
            let error = script(unknown).unwrap_err();
            assert!(error.to_string().contains(&unknown.to_string()), "{error}");
            assert!(error.hint().is_some());
        }
    }
}
