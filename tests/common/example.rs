// For the examples in the documentation of the library: each gets a database of its own, with the schema, on the server
// of the tests, and as an argument how to connect to it. Without such a server they are compiled, and not run.
pub fn on_a_database<F>(example: F)
where
    F: AsyncFnOnce(String, tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>>,
{
    let Ok(server) = std::env::var("BUGLE_SERVER_URL") else {
        return;
    };
    let run = async {
        let server: tokio_postgres::Config = server.parse()?;
        let name = format!("bugle_example_{:016x}", fastrand::u64(..));
        let owner = connect(&server).await?;
        owner.batch_execute(&format!("create database {name}")).await?;
        let mut config = server.clone();
        config.dbname(&name);
        bugle::schema::migrate(&config).await?;
        let done = example(written(&config), connect(&config).await?).await;
        owner.batch_execute(&format!("drop database {name} with (force)")).await?;
        done
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(run).expect("the example works");
    runtime.shutdown_background();
}

async fn connect(config: &tokio_postgres::Config) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    let (client, connection) = config.connect(tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// As a connection string.
fn written(config: &tokio_postgres::Config) -> String {
    let host = match &config.get_hosts()[0] {
        tokio_postgres::config::Host::Tcp(name) => name.clone(),
        tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
    };
    let user = config.get_user().unwrap_or("postgres");
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let password = String::from_utf8_lossy(config.get_password().unwrap_or_default());
    let name = config.get_dbname().unwrap_or_default();
    format!("host='{host}' port={port} user='{user}' password='{password}' dbname='{name}'")
}
