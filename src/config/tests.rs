use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use clap::Parser;

use super::*;
use crate::error::{Error, Result};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    flags: Flags,
}

/// Clap would read the environment of this process, so tests set everything they rely on.
fn flags(arguments: &[&str]) -> Flags {
    Cli::try_parse_from([&["bugle"], arguments].concat()).unwrap().flags
}

fn resolve(arguments: &[&str], file: &str) -> Result<Settings> {
    let environment = |name: &str| match name {
        "DATABASE_URL" => Some("postgres://generic".to_string()),
        "APP_DATABASE" => Some("postgres://app".to_string()),
        _ => None,
    };
    Settings::resolve_in(&environment, flags(arguments), Some(Config::from_toml(file)?))
}

fn queue(name: &str, slots: u32) -> (String, u32) {
    (name.to_string(), slots)
}

#[test]
fn a_file_with_everything_is_read() {
    let config = Config::from_toml(
        r#"
        database_url = "env:APP_DATABASE"
        name = "left"
        drain = "1m 30s"
        safety_poll = "0s"
        workdir = "/var/lib/bugle"
        migrate = true
        pool_size = 3
        [queues]
        default = 32
        mail = 4
        [commands.resize]
        program = ["resize", "--fast"]
        timeout = "10s"
        env = { LEVEL = "9", TOKEN = "env:RESIZE_TOKEN" }
        cwd = "workdir"
        no_retry_exit_codes = [65, 78]
        skip_exit_codes = [3]
        kill_after = "1s"
        [commands.refresh]
        sql = "select app.refresh($1)"
        [commands.hook]
        http = { method = "PUT", url = "https://example.org/hook", headers = { authorization = "env:HOOK_TOKEN" } }
        "#,
    )
    .unwrap();

    assert_eq!(config.drain, Some(Duration::from_secs(90)));
    assert_eq!(config.queues["default"], 32);
    let resize = &config.commands["resize"];
    assert_eq!(resize.timeout, Duration::from_secs(10));
    let Action::Program(program) = &resize.action else {
        panic!("{resize:?}")
    };
    assert_eq!(program.argv, ["resize", "--fast"]);
    assert_eq!(program.cwd, Cwd::Workspace);
    assert_eq!(program.no_retry_exit_codes, [65, 78]);
    assert_eq!(program.skip_exit_codes, [3]);
    assert_eq!(config.commands["refresh"].timeout, Duration::from_secs(300));
    let Action::Http(hook) = &config.commands["hook"].action else {
        panic!()
    };
    assert_eq!(hook.method, "PUT");
}

#[test]
fn what_is_wrong_is_said_with_its_line_and_key() {
    let table = [
        (
            "databse_url = 'x'",
            &["line 1", "unknown field `databse_url`", "`database_url`", "`pool_size`"][..],
        ),
        (
            "\n[commands.a]\nprogam = ['x']",
            &["line 3", "commands.a", "unknown field `progam`", "`program`"],
        ),
        (
            "[commands.a]\ntimeout = '5m'",
            &["commands.a", "needs one of program, sql or http"],
        ),
        (
            "[commands.a]\nprogram = ['x']\nsql = 'y'",
            &["commands.a", "only one of program, sql or http"],
        ),
        ("[commands.a]\nprogram = []", &["commands.a", "program is empty"]),
        ("[commands.a]\nprogram = ['']", &["commands.a", "program is empty"]),
        ("[commands.a]\nsql = ' '", &["commands.a", "sql is empty"]),
        (
            "[commands.a]\nsql = 'x'\nbatch = 0",
            &["commands.a", "batch is 0; it must be between 1 and 1000"],
        ),
        (
            "[commands.a]\nsql = 'x'\nbatch = 1001",
            &["commands.a", "batch is 1001"],
        ),
        (
            "[commands.a]\nprogram = ['x']\nbatch = 5",
            &["commands.a", "batch is only valid for a command with sql"],
        ),
        (
            "[commands.a]\nsql = 'x'\ncwd = '/'",
            &["commands.a", "cwd is only valid for"],
        ),
        (
            "[commands.a]\nprogram = ['x']\nenv = { 'A=B' = 'c' }",
            &["commands.a", "cannot be named \"A=B\""],
        ),
        (
            "[commands.a]\nprogram = ['x']\nenv = ['']",
            &["commands.a", "cannot be named \"\""],
        ),
        (
            "[commands.a]\nprogram = ['x']\nenv = ['A=hunter2']",
            &["commands.a", "an entry with a value", "[\"NAME\", …]"],
        ),
        (
            "[commands.a]\nprogram = ['x']\nenv = [7]",
            &["commands.a", "an entry of type integer", "[\"NAME\", …]"],
        ),
        (
            "[commands.a]\nprogram = ['x']\nenv = 'everything'",
            &["commands.a", "write env as", "\"inherit\""],
        ),
        (
            "[commands.a]\nprogram = ['x']\nenv = true",
            &["commands.a", "write env as", "\"inherit\""],
        ),
        (
            "[commands.a]\nprogram = ['x']\nenv = { '*' = 'yes' }",
            &["commands.a", "\"*\" in env can only be \"inherit\""],
        ),
        (
            "[commands.a]\nprogram = ['x']\nenv = { A = 7 }",
            &["commands.a", "env A must be a string", "integer"],
        ),
        (
            "[commands.a]\nprogram = ['x']\ntimeout = '0s'",
            &["commands.a", "longer than zero"],
        ),
        (
            "[commands.a]\nprogram = ['x']\ntimeout = '5 cows'",
            &["line 3", "commands.a.timeout", "\"30s\""],
        ),
        (
            "[commands.a]\nprogram = ['x']\ntimeout = 5",
            &["line 3", "a duration such as \"30s\""],
        ),
        (
            "[commands.a]\nhttp = { uri = 'x' }",
            &["line 2", "commands.a.http", "unknown field `uri`", "`url`"],
        ),
        (
            "[commands.a]\nhttp = { method = 'GET' }",
            &["commands.a.http", "missing field `url`"],
        ),
        ("[commands.'']\nprogram = ['x']", &["the command name \"\""]),
        ("[queues]\n'' = 1", &["the queue name \"\""]),
        ("[queues]\nmail = 0", &["\"mail\" has 0 slots", "1 to 10000"]),
        ("[queues]\nmail = 10001", &["\"mail\" has 10001 slots"]),
        ("[queues]\nmail = -1", &["line 2", "queues.mail"]),
        ("name = ", &["line 1"]),
    ];

    for (text, expected) in table {
        let error = Config::from_toml(text).expect_err(text).to_string();
        for part in expected {
            assert!(error.contains(part), "{text:?} gave {error:?}, which lacks {part:?}");
        }
    }
}

#[test]
fn secrets_are_shown_neither_by_errors_nor_by_debug() {
    let broken = [
        "database_url = 'postgres://u:hunter2@h/d' x",
        "database_url = ['hunter2']",
        "[commands.a]\nhttp = { url = 'x', headers = { token = ['hunter2'] } }",
        "[commands.a]\nhttp = { url = 'hunter2', uri = 1 }",
        "[commands.a]\nprogram = ['x']\nenv = ['A=hunter2']",
        "[commands.a]\nprogram = ['x']\nenv = { A = ['hunter2'] }",
        "[commands.a]\nprogram = ['x']\nenv = 'hunter2'",
    ];
    for text in broken {
        let error = Config::from_toml(text).expect_err(text);
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
    let settings = resolve(&["--database-url", "postgres://u:hunter2@h/d"], "").unwrap();
    assert!(!format!("{settings:?}").contains("hunter2"));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Config::from_file(Path::new("/nowhere/worker.toml")).unwrap_err();

    assert!(error.to_string().contains("/nowhere/worker.toml"), "{error}");
}

#[test]
fn without_flags_and_file_there_are_defaults() {
    let settings = Settings::resolve_in(&|_| Some("postgres://x".into()), flags(&[]), None).unwrap();

    assert_eq!(settings.queues, [queue("default", 4)]);
    assert_eq!(settings.drain, Duration::from_secs(30));
    assert_eq!(settings.safety_poll, Duration::from_secs(10));
    assert_eq!(settings.pool_size, 8);
    assert!(!settings.migrate && !settings.until_empty);
}

#[test]
fn without_queues_there_are_slots_for_all_jobs_that_hosts_run_at_once() {
    let slots = |file: &str| resolve(&["--database-url", "postgres://x"], file).unwrap().queues;
    let host = |name: &str, more: &str| format!("[hosts.{name}]\nprogram = ['x']\n{more}\n");

    assert_eq!(slots(&host("a", "")), [queue("default", 16)]);
    assert_eq!(slots(&host("a", "concurrency = 1")), [queue("default", 4)]);
    let two = host("a", "processes = 3\nconcurrency = 8") + &host("b", "processes = 2");
    assert_eq!(slots(&two), [queue("default", 3 * 8 + 2 * 16)]);
    assert_eq!(slots(&format!("{two}[queues]\nmail = 2")), [queue("mail", 2)]);
}

#[test]
fn flags_win_over_the_file() {
    let file = "database_url = 'postgres://file'\nname = 'file'\ndrain = '1s'\nmigrate = true\n[queues]\na = 1";
    let arguments = [
        "--database-url",
        "postgres://flag",
        "--name",
        "flag",
        "--drain",
        "2s",
        "--migrate=false",
    ];

    let settings = resolve(&[&arguments[..], &["--queue", "b=2", "-q", "c=3,d=4"]].concat(), file).unwrap();

    assert_eq!(settings.database_url, "postgres://flag");
    assert_eq!(settings.name, "flag");
    assert_eq!(settings.drain, Duration::from_secs(2));
    assert!(!settings.migrate);
    assert_eq!(settings.queues, [queue("b", 2), queue("c", 3), queue("d", 4)]);
}

#[test]
fn the_database_is_the_files_before_it_is_that_of_the_surroundings() {
    let named = |file| resolve(&[], file).map(|settings| settings.database_url);

    assert_eq!(named("").unwrap(), "postgres://generic");
    assert_eq!(named("database_url = 'postgres://file'").unwrap(), "postgres://file");
    assert_eq!(named("database_url = 'env:APP_DATABASE'").unwrap(), "postgres://app");
    let error = named("database_url = 'env:MISSING'").unwrap_err().to_string();
    assert!(
        error.contains("database_url") && error.contains("\"MISSING\" is not set"),
        "{error}"
    );
}

#[test]
fn no_database_at_all_is_an_error_with_a_hint() {
    let error = Settings::resolve_in(&|_| None, flags(&[]), None).unwrap_err();

    assert!(error.hint().unwrap().contains("BUGLE_DATABASE_URL"), "{error}");
}

#[test]
fn values_out_of_range_are_refused() {
    for (arguments, part) in [
        (["--pool-size", "0"], "between 1 and 1000"),
        (["--safety-poll", "5ms"], "at least 100ms"),
        (["--queue", "a=1,a=2"], "given twice"),
    ] {
        let error = resolve(&arguments, "").expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
    for argument in ["mail", "mail=0", "mail=many", "=4"] {
        assert!(
            Cli::try_parse_from(["bugle", "--queue", argument]).is_err(),
            "{argument}"
        );
    }
}

#[test]
fn zero_switches_the_safety_poll_off() {
    assert_eq!(
        resolve(&["--safety-poll", "0s"], "").unwrap().safety_poll,
        Duration::ZERO
    );
}

#[test]
fn a_flag_alone_means_yes() {
    assert_eq!(flags(&["--migrate"]).migrate, Some(true));
    assert!(flags(&["--until-empty"]).until_empty);
}

#[test]
fn a_token_is_read_from_a_file_that_nobody_else_can_write() {
    let folder = std::env::temp_dir().join(format!("bugle-test-{:016x}", fastrand::u64(..)));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("token");
    let token = |text: &str, mode: u32| {
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let settings = resolve(
            &["--token-file", path.to_str().unwrap()],
            "token = 'from the file, not used'",
        )?;
        Ok::<_, Error>(settings.token.expect("a token"))
    };
    let refused = |text: &str, mode: u32| token(text, mode).unwrap_err().to_string();

    assert_eq!(token("0123456789abcdef\n", 0o600).unwrap(), "0123456789abcdef");
    // as container platforms mount secrets
    assert_eq!(token("0123456789abcdef", 0o444).unwrap(), "0123456789abcdef");
    assert!(refused("0123456789abcdef", 0o666).contains("other users can write"));
    assert!(refused("short", 0o600).contains("fewer than 16 characters"));
    std::fs::remove_dir_all(&folder).unwrap();
    let missing = resolve(&[], "token_file = '/nowhere/token'").unwrap_err().to_string();
    assert!(
        missing.contains("cannot read the token file /nowhere/token"),
        "{missing}"
    );
}

#[test]
fn a_token_and_a_file_with_a_token_are_not_given_both() {
    let both = ["--token", "0123456789abcdef", "--token-file", "/nowhere/token"];

    for error in [
        resolve(&both, "").unwrap_err(),
        resolve(&[], "token = 'env:X'\ntoken_file = '/nowhere'").unwrap_err(),
    ] {
        assert!(error.to_string().contains("both a token and a token file"), "{error}");
    }
}

#[test]
fn a_file_may_have_several_databases_instead_of_one() {
    let file = r#"
        slots = 12
        [databases.shop]
        url = "env:APP_DATABASE"
        queues = { default = 8, mail = 2 }
        [databases.billing]
        url = "postgres://billing"
        "#;
    let settings = resolve(&[], file).unwrap();

    let names: Vec<_> = settings
        .databases
        .iter()
        .map(|database| database.name.as_str())
        .collect();
    assert_eq!((names, settings.slots), (vec!["billing", "shop"], Some(12)));
    assert_eq!((settings.database_url.as_str(), settings.queues.len()), ("", 0));
    let workers = settings.for_each_database();
    assert_eq!(workers[0].served_queues(), [queue("default", 4)]);
    assert_eq!(workers[1].database_url, "postgres://app");
    assert_eq!(workers[1].served_queues(), [queue("default", 8), queue("mail", 2)]);

    let error = resolve(&["--database-url", "postgres://x"], file).unwrap_err();
    assert!(
        error.to_string().contains("hint: Give each database its URL"),
        "{error}"
    );
    let error = resolve(&[], "[databases.shop]\nurl = \"env:NOT_SET\"").unwrap_err();
    assert!(error.to_string().starts_with("databases.shop.url: "), "{error}");
    let error = resolve(&[], "[databases.shop]\nqueues = {}").unwrap_err();
    assert!(
        error.to_string().contains("databases.shop: missing field `url`"),
        "{error}"
    );
}
