use super::*;

fn nothing(_: &str) -> Option<String> {
    None
}

fn target(text: &str) -> Result<Target> {
    Target::parse_in("a test", text, &nothing)
}

#[test]
fn each_host_has_its_port() {
    let servers = |text| {
        target(text)
            .unwrap()
            .servers
            .iter()
            .map(ServerAddress::to_string)
            .collect::<Vec<_>>()
    };

    assert_eq!(
        servers("host=a,b,/run/x port=1,,3"),
        ["a:1", "b:5432", "/run/x/.s.PGSQL.3"]
    );
    assert_eq!(servers("host=a,b port=7"), ["a:7", "b:7"]);
    assert_eq!(servers("hostaddr=::1"), ["[::1]:5432"]);
}

#[test]
fn what_is_not_understood_is_refused_and_says_what_is() {
    for (text, says) in [
        ("host=a,b port=1,2,3", "do not match"),
        ("host=a port=0", "is not a port"),
        ("host=a port=x", "is not a port"),
        ("hostaddr=a", "is not an IP address"),
        ("host=a sslmode=strong", "sslmode=strong is invalid"),
        ("host=a sslmode=verify-full", "no root certificate"),
        ("host=a sslmode=require sslrootcert=system", "too weak"),
        ("host=a sslmode=verify-ca sslrootcert=/nowhere", "cannot read /nowhere"),
        ("host=a sslcert=/nowhere", "without sslkey"),
        ("host=a target_session_attrs=best", "is invalid"),
        ("host=a connect_timeout=soon", "connect_timeout is not a number"),
        ("host=a keepalives_idle=soon", "keepalives_idle is not a number"),
        ("host=a require_auth=scram-sha-256", "not supported"),
        ("host=a channel_binding=maybe", "channel_binding"),
        ("host=a sslnegotiation=direct", "sslnegotiation"),
        ("host=a ssl_min_protocol_version=SSLv3", "is invalid"),
    ] {
        let error = target(text).unwrap_err().to_string();

        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn what_postgres_18_brought_is_accepted_or_refused_by_name_and_never_shown() {
    for name in [
        "sslkeylogfile",
        "min_protocol_version",
        "max_protocol_version",
        "oauth_issuer",
        "oauth_client_id",
        "oauth_client_secret",
        "oauth_scope",
        "scram_client_key",
        "scram_server_key",
    ] {
        let error = target(&format!("host=a {name}=s3cret")).unwrap_err().to_string();

        assert!(error.starts_with(&format!("{name} is not supported")), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
    for harmless in [
        "min_protocol_version=3.0",
        "max_protocol_version=latest",
        "sslpassword=s3cret",
    ] {
        let accepted = target(&format!("host=a {harmless}")).unwrap();

        assert!(!format!("{accepted:?}").contains("s3cret"));
    }
    let missing = target("host=a sslmode=verify-ca sslrootcert=/nowhere sslcrldir=/nowhere").unwrap_err();
    assert!(missing.to_string().contains("cannot read /nowhere"), "{missing}");
}

#[test]
fn a_password_is_never_shown() {
    let target = target("host=a user=ada password=s3cret").unwrap();

    assert!(!format!("{target:?}").contains("s3cret"));
    assert!(target.connection_string().contains("s3cret"));
}

#[test]
fn a_dead_link_is_noticed_in_seconds_unless_somebody_says_otherwise() {
    let config = |text| {
        let target = target(text).unwrap();
        target.config(&target.servers[0]).unwrap()
    };

    let quick = config("host=a");
    let slow = config("host=a connect_timeout=60 tcp_user_timeout=90000 keepalives_idle=100 keepalives_count=9");

    assert_eq!(quick.get_tcp_user_timeout(), Some(&Duration::from_secs(10)));
    assert_eq!(
        quick.get_keepalives_idle() + 3 * quick.get_keepalives_interval().unwrap(),
        Duration::from_secs(11)
    );
    assert_eq!(quick.get_connect_timeout(), Some(&Duration::from_secs(10)));
    assert_eq!(slow.get_tcp_user_timeout(), Some(&Duration::from_secs(90)));
    assert_eq!(slow.get_keepalives_idle(), Duration::from_secs(100));
    assert_eq!(slow.get_connect_timeout(), Some(&Duration::from_secs(60)));
}

#[test]
fn servers_before_14_are_too_old() {
    assert!(is_too_old("13.22 (Debian)") && is_too_old("9.6.1"));
    assert!(!is_too_old("14.0") && !is_too_old("18beta1") && !is_too_old("unknown"));
}

#[test]
fn a_configuration_of_the_driver_says_which_of_several_servers_is_wanted() {
    let driver = "host=a,b user=u target_session_attrs=read-write load_balance_hosts=random connect_timeout=3";
    let target = Target::from(&driver.parse::<Config>().unwrap());

    assert_eq!(target.wanted, Wanted::ReadWrite);
    assert!(target.shuffled);
    assert_eq!(target.timeout, Duration::from_secs(3));
}
