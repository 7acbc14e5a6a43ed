use super::*;

fn nothing(_: &str) -> Option<String> {
    None
}

fn said(text: &str) -> Vec<(String, String)> {
    read(text).unwrap().into_iter().collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

#[test]
fn a_url_says_everything() {
    assert_eq!(
        said("postgresql://ada:p%40ss@db1:5433,[::1],%2Frun%2Fpg:5434/shop?sslmode=verify-full&application_name=x%20y"),
        pairs(&[
            ("application_name", "x y"),
            ("dbname", "shop"),
            ("host", "db1,::1,/run/pg"),
            ("password", "p@ss"),
            ("port", "5433,,5434"),
            ("sslmode", "verify-full"),
            ("user", "ada"),
        ])
    );
    assert_eq!(said("postgres://"), pairs(&[]));
    assert_eq!(
        said("postgres:///shop?host=/tmp"),
        pairs(&[("dbname", "shop"), ("host", "/tmp")])
    );
    assert_eq!(
        said("postgres://h/d?ssl=true"),
        pairs(&[("dbname", "d"), ("host", "h"), ("sslmode", "require")])
    );
}

#[test]
fn names_and_values_may_be_quoted() {
    assert_eq!(
        said(r"host = /tmp user='a d\'a' password=x\ y dbname=''"),
        pairs(&[("dbname", ""), ("host", "/tmp"), ("password", "x y"), ("user", "a d'a")])
    );
    assert_eq!(said("shop"), pairs(&[("dbname", "shop")]));
}

#[test]
fn what_cannot_be_read_is_refused_without_showing_a_value() {
    for text in [
        "postgres://ada:s3cret@h/d?color=s3cret",
        "host=h color=s3cret",
        "password='s3cret",
        "postgres://ada:s3cret%4@h/d",
        "postgres://ada:s3cret%+4@h/d",
        "postgres://ada:s3cret%00@h/d",
        "postgres://ada:s3cret@[::1/d",
        "user ada password=s3cret",
        "h:5432/s3cret",
    ] {
        let error = read(text).unwrap_err().to_string();

        assert!(
            error.contains("is invalid") && error.contains("hint: Expected"),
            "{text}: {error}"
        );
        assert!(!error.contains("s3cret"), "{error}");
    }
}

#[test]
fn without_a_string_the_environment_names_the_database() {
    let environment = |name: &str| (name == "PGDATABASE").then(|| "shop".to_owned());

    assert_eq!(resolve("", &environment).unwrap()["dbname"], "shop");
    assert_eq!(resolve("host=h", &environment).unwrap()["dbname"], "shop");
}

#[test]
fn the_string_comes_before_the_environment_and_the_environment_before_the_defaults() {
    let environment = |name: &str| match name {
        "PGHOST" => Some("from-environment".to_owned()),
        "PGPORT" => Some("5433".to_owned()),
        "PGSSLMODE" => Some(String::new()),
        "USER" => Some("ada".to_owned()),
        _ => None,
    };

    let all = resolve("host=from-string", &environment).unwrap();

    assert_eq!(
        all.into_iter().collect::<Vec<_>>(),
        pairs(&[
            ("dbname", "ada"),
            ("host", "from-string"),
            ("port", "5433"),
            ("user", "ada")
        ])
    );
    assert!(named_by(&environment));
    assert!(!named_by(&nothing));
}

#[test]
fn a_service_comes_between_the_string_and_the_environment() {
    let folder = std::env::temp_dir().join(format!("bugle-service-{:016x}", fastrand::u64(..)));
    std::fs::write(
        &folder,
        "[other]\nhost=no\n\n[shop]\n# where\nhost = db\nuser=ada\ndbname=shop\n[more]\nport=1\n",
    )
    .unwrap();
    let file = folder.display().to_string();
    let environment = |name: &str| match name {
        "PGSERVICEFILE" => Some(file.clone()),
        "PGUSER" => Some("bob".to_owned()),
        "PGPORT" => Some("5433".to_owned()),
        _ => None,
    };

    let all = resolve("service=shop dbname=mine", &environment).unwrap();
    let missing = resolve("service=nope", &environment).unwrap_err();
    std::fs::remove_file(&folder).unwrap();

    assert_eq!(
        [&all["host"], &all["user"], &all["dbname"], &all["port"]],
        ["db", "ada", "mine", "5433"]
    );
    assert!(missing.to_string().contains("\"nope\""), "{missing}");
}

#[test]
fn what_is_written_can_be_read_again() {
    let all = resolve(r"host=h user='a\'b' password='x \\ y' dbname=d", &nothing).unwrap();

    assert_eq!(resolve(&written(&all), &nothing).unwrap(), all);
}
