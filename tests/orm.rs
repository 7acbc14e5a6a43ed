//! docs/orm.md is true: its models enqueue in the transaction of the application, with the rights it names and no
//! others.
//!
//! The code is taken from the page: a block whose first line is a comment with the name of a file is that file. Beside
//! it is put a story (tests/orm/…), which has an order of coffee refused and places orders of tea. What cannot be had
//! here is skipped, and says so; what is large to fetch or long to build is only run with `BUGLE_TEST_ORMS=all`, or if
//! that has been done before.

mod common;
#[path = "pgbouncer/mod.rs"]
mod pgbouncer;
#[allow(dead_code)] // what only the examples need
#[path = "examples/runtime.rs"]
mod runtime;

use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::OnceLock;

use bugle::private_postgres::{Options, PrivatePostgres};
use common::{BUGLE, DEADLINE, Database, Folder, execute};
use runtime::{BUILD, FETCH, cache, can_run, cargo, fetched, fetched_within, missing, succeeds};
use tokio::process::Command;
use tokio::sync::OnceCell;
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config};

const PAGE: &str = include_str!("../docs/orm.md");
/// Enough for a driver that prepares a statement after its fifth use.
const ROUNDS: i64 = 8;

#[tokio::test(flavor = "multi_thread")]
async fn sqlalchemy_enqueues_with_the_order_or_not_at_all() {
    let Some(packages) = python_packages().await else {
        return;
    };
    let project = Project::of("SQLAlchemy", &["python/story.py", "python/sqlalchemy_story.py"]);
    project
        .tells_the_story(&|| project.python(&packages, "sqlalchemy_story.py"))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn django_enqueues_with_the_order_or_not_at_all() {
    let Some(packages) = python_packages().await else {
        return;
    };
    let project = Project::of(
        "Django",
        &["python/story.py", "python/configure.py", "python/django_story.py"],
    );
    project
        .tells_the_story(&|| project.python(&packages, "django_story.py"))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn drizzle_enqueues_with_the_order_or_not_at_all() {
    node("Drizzle", "drizzle.mjs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn typeorm_enqueues_with_the_order_or_not_at_all() {
    node("TypeORM", "typeorm.mjs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sequelize_enqueues_with_the_order_or_not_at_all() {
    node("Sequelize", "sequelize.mjs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prisma_enqueues_with_the_order_or_not_at_all() {
    let Some(modules) = prisma_modules().await else { return };
    let project = Project::of("Prisma", &["node/story.mjs", "node/prisma.mjs"]);
    project.link(&modules);
    let mut generate = Command::new("node");
    generate
        .args([
            "node_modules/prisma/build/index.js",
            "generate",
            "--schema",
            "schema.prisma",
        ])
        // it would fetch one, and does not need it for this
        .env("PRISMA_SCHEMA_ENGINE_BINARY", "/bin/true")
        .env("CHECKPOINT_DISABLE", "1")
        .current_dir(project.folder.path());
    assert!(succeeds(generate, BUILD).await, "prisma generate fails");
    for module in ["./shop.mjs", "./call.mjs"] {
        let story = || {
            let mut node = project.node("prisma.mjs");
            node.arg(module);
            node
        };
        project.tells_the_story(&story).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlx_enqueues_with_the_order_or_not_at_all() {
    rust("sqlx").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn diesel_enqueues_with_the_order_or_not_at_all() {
    rust("diesel").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sea_orm_enqueues_with_the_order_or_not_at_all() {
    rust("sea-orm").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn activerecord_enqueues_with_the_order_or_not_at_all() {
    let mut probe = Command::new("ruby");
    probe.args(["-e", "require 'active_record'; require 'pg'"]);
    if !succeeds(probe, FETCH).await {
        return missing("ActiveRecord", "apt-get install ruby-activerecord ruby-pg").unwrap_or_default();
    }
    let project = Project::of("ActiveRecord", &["ruby/story.rb"]);
    let story = || {
        let mut ruby = Command::new("ruby");
        ruby.arg(project.folder.join("story.rb"));
        ruby
    };
    project.tells_the_story(&story).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jdbc_enqueues_with_the_order_or_not_at_all() {
    let Some((driver, classpath)) = runtime::jdbc().await.map(|driver| {
        let classpath = format!("{}:.", driver.display());
        (driver, classpath)
    }) else {
        return;
    };
    let project = Project::of("JDBC", &["java/Story.java"]);
    let mut javac = Command::new("javac");
    javac
        .args(["-d", ".", "-cp"])
        .arg(&driver)
        .args(["Shop.java", "Story.java"])
        .current_dir(project.folder.path());
    assert!(succeeds(javac, BUILD).await, "javac fails");
    let story = || {
        let mut java = Command::new("java");
        java.args(["-cp", &classpath, "Story"])
            .current_dir(project.folder.path());
        java
    };
    project.tells_the_story(&story).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn alembic_leaves_the_schema_alone() {
    let Some(packages) = python_packages().await else {
        return;
    };
    let project = Project::of("SQLAlchemy", &["python/alembic_tool.py"]);
    put_files(section("Migration tools"), project.folder.path());
    let said = leaves_the_schema_alone("", &mut project.python(&packages, "alembic_tool.py")).await;
    assert_eq!(said, "[]\n[]\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_migrations_of_django_leave_the_schema_alone() {
    let Some(packages) = python_packages().await else {
        return;
    };
    let project = Project::of("Django", &["python/configure.py", "python/django_tool.py"]);
    leaves_the_schema_alone("drop table orders", &mut project.python(&packages, "django_tool.py")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn synchronize_of_typeorm_leaves_the_schema_alone() {
    let Some(modules) = node_modules().await else { return };
    let project = Project::of("TypeORM", &["node/typeorm_tool.mjs"]);
    project.link(&modules);
    leaves_the_schema_alone("drop table orders", &mut project.node("typeorm_tool.mjs")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sync_of_sequelize_leaves_the_schema_alone() {
    let Some(modules) = node_modules().await else { return };
    let project = Project::of("Sequelize", &["node/sequelize_tool.mjs"]);
    project.link(&modules);
    leaves_the_schema_alone("drop table orders", &mut project.node("sequelize_tool.mjs")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn alembic_and_django_apply_the_script_that_bugle_prints_for_them() {
    let Some(packages) = python_packages().await else {
        return;
    };
    let page = include_str!("../docs/upgrading.md");
    let script = bugle::schema::script(0).unwrap();
    for (tool, place) in [
        ("script_alembic.py", "versions"),
        ("script_django.py", "shop/migrations"),
    ] {
        let project = Project::of("Django", &["python/configure.py", &format!("python/{tool}")]);
        put_files(page, project.folder.path());
        for file in ["shop/__init__.py", "shop/migrations/__init__.py"] {
            std::fs::write(project.folder.join(file), "").expect("a file");
        }
        std::fs::write(project.folder.join(place).join("bugle_1.sql"), &script).expect("a file");
        let database = Database::empty_on(server().tcp_url("postgres").unwrap().parse().unwrap()).await;

        let url = server().tcp_url(&database.name).unwrap();
        run(project.python(&packages, tool).env("DATABASE_URL", url))
            .await
            .unwrap_or_else(|said| panic!("{tool}: {said}"));

        let found = bugle::schema::migrate(&database.config("owner")).await;
        assert_eq!(found.expect("migrates"), bugle::schema::Migrated::Unchanged, "{tool}");
        let noted = "select count(*) from pg_tables where schemaname = 'public' and tablename in ('alembic_version', \
            'django_migrations')";
        let noted: i64 = database.owner().await.query_one(noted, &[]).await.unwrap().get(0);
        assert_eq!(noted, 1, "{tool}");
    }
}

/// A tool that may do everything to a database creates the table of the application, if that is missing, and changes
/// nothing in the schema.
async fn leaves_the_schema_alone(first: &str, tool: &mut Command) -> String {
    let shop = Shop::open().await;
    shop.execute("insert into bugle.jobs (command) values ('ship')").await;
    shop.execute(first).await;
    let before = shop.schema().await;

    let url = server().tcp_url(&shop.database.name).unwrap();
    let said = run(tool.env("DATABASE_URL", url)).await.expect("it runs");

    assert_eq!(shop.ask("select count(*) from orders").await, 0);
    assert_eq!(shop.ask("select count(*) from bugle.jobs").await, 1);
    assert_eq!(shop.schema().await, before);
    said
}

#[test]
fn what_the_page_says_is_tested_is_tested() {
    let tests = include_str!("orm.rs");
    let mut tested = 0;
    for row in rows("ORMs").iter().filter(|row| row[0].starts_with('[')) {
        for link in row[0].split(", ") {
            let name = link.trim_start_matches('[').split(']').next().unwrap();
            let test = format!("fn {}_enqueues_with", name.to_lowercase().replace('-', "_"));
            assert_eq!(tests.contains(&test), row[1] != "not tested", "{name}: {}", row[1]);
            assert_eq!(section(name).contains("Not tested."), row[1] == "not tested", "{name}");
            tested += usize::from(row[1] != "not tested");
        }
    }
    assert_eq!(tested, 11);
}

#[test]
fn the_versions_on_the_page_are_those_of_the_tests() {
    let pinned = [
        "python/requirements.txt",
        "node/package.json",
        "prisma/package.json",
        "rust/Cargo.toml",
    ]
    .map(|file| std::fs::read_to_string(source(file)).unwrap())
    .concat();
    for row in rows("ORMs").iter().filter(|row| row[0].starts_with('[')) {
        let versions = row[1].split([' ', ',']).filter(|word| word.matches('.').count() == 2);
        for version in versions {
            assert!(pinned.contains(version), "{}: {version} is not what is tested", row[0]);
        }
    }
}

/// The code of one section of the page, with its story.
struct Project {
    section: &'static str,
    folder: Folder,
    /// Of the page and of the story.
    code: String,
}

impl Project {
    fn of(section_name: &'static str, stories: &[&str]) -> Project {
        let folder = Folder::new();
        put_files(section(section_name), folder.path());
        for story in stories {
            let name = Path::new(story).file_name().unwrap();
            std::fs::copy(source(story), folder.path().join(name)).expect("a copy");
        }
        let texts = stories
            .iter()
            .map(|story| std::fs::read_to_string(source(story)).unwrap());
        Project {
            section: section_name,
            code: texts.chain([section(section_name).to_owned()]).collect(),
            folder,
        }
    }

    fn python(&self, packages: &Path, script: &str) -> Command {
        let mut python = Command::new("python3");
        python
            .env("PYTHONPATH", packages)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .arg(self.folder.join(script));
        python
    }

    fn node(&self, script: &str) -> Command {
        let mut node = Command::new("node");
        node.arg(self.folder.join(script)).current_dir(self.folder.path());
        node
    }

    /// Node looks for packages beside the script.
    fn link(&self, place: &Path) {
        let modules = place.join("node_modules");
        std::os::unix::fs::symlink(modules, self.folder.join("node_modules")).expect("a link");
    }

    async fn tells_the_story(&self, program: &dyn Fn() -> Command) {
        let shop = Shop::open().await;

        // with the rights of the page: both rows are there, or neither
        let told = run(program().env("DATABASE_URL", &shop.url)).await;
        assert_eq!(told.expect("it runs"), "rolled back\ncommitted 2 2\n");
        // ids are given once: the job of the order that was rolled back had the first
        assert_eq!(
            shop.orders_and_jobs().await,
            ["2 tea", "2 ship {\"order\": 2} default ready"]
        );

        // without them: what the page says it looks like
        shop.execute(&format!("revoke bugle_enqueuer from {}", shop.login))
            .await;
        let said = run(program().env("DATABASE_URL", &shop.url))
            .await
            .expect_err("it is refused");
        for text in code(&row("What an ORM prints", self.section)[1]) {
            assert!(said.contains(&text), "{}: expected {text} in\n{said}", self.section);
        }
        shop.execute(&format!("grant bugle_enqueuer to {}", shop.login)).await;

        // through a pooler, with the settings of the page: the second program meets the statements of the first
        let settings = &row("PgBouncer", self.section)[1];
        if settings == "none helps" {
            return;
        }
        for setting in code(settings) {
            assert!(self.code.contains(&setting), "{}: {setting} is not tried", self.section);
        }
        let Some((pooler, url)) = shop.pooler().await else {
            return;
        };
        for _ in 0..2 {
            let mut program = program();
            let pooled = program.env("DATABASE_URL", &url).env("POOLED", "1");
            run(pooled.env("ROUNDS", ROUNDS.to_string()))
                .await
                .expect("it runs behind PgBouncer");
        }
        drop(pooler);
        let pairs: i64 = shop
            .ask(
                "select count(*) from orders o join bugle.jobs j on j.payload = jsonb_build_object('order', o.id) \
                where o.item = 'tea'",
            )
            .await;
        assert_eq!(pairs, 1 + 2 * ROUNDS);
        assert_eq!(shop.orders_and_jobs().await.len() as i64, 2 * pairs);
    }
}

/// A database with the schema, the table of the page, and its login.
struct Shop {
    database: Database,
    owner: Client,
    login: String,
    url: String,
}

impl Shop {
    async fn open() -> Shop {
        let database = Database::empty_on(server().tcp_url("postgres").unwrap().parse().unwrap()).await;
        bugle::schema::migrate(&database.config("owner"))
            .await
            .expect("migrates");
        database.create_logins().await;
        let owner = database.owner().await;
        let login = format!("{}_enqueuer", database.name);
        let table = blocks(section("ORMs"), "sql").remove(0);
        execute(&owner, &table).await;
        let grants = blocks(section("ORMs"), "sql,rollback").remove(0);
        let (role, grants) = grants.split_once(";\n").expect("a role, then its grants");
        assert!(role.ends_with("in role bugle_enqueuer"), "{role}");
        let grants = grants.replace(" to shop", &format!(" to {login}"));
        execute(&owner, &grants).await;
        let url = format!(
            "postgresql://{login}:{login}@127.0.0.1:{}/{}",
            server().port(),
            database.name
        );
        Shop {
            database,
            owner,
            login,
            url,
        }
    }

    async fn execute(&self, sql: &str) {
        self.owner.batch_execute(sql).await.expect(sql);
    }

    async fn ask(&self, sql: &str) -> i64 {
        self.owner.query_one(sql, &[]).await.expect(sql).get(0)
    }

    async fn orders_and_jobs(&self) -> Vec<String> {
        let sql = "select concat_ws(' ', id, item) from orders union all \
                   select concat_ws(' ', id, command, payload, queue, state) from bugle.jobs";
        let rows = self.owner.query(sql, &[]).await.expect(sql);
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// All columns, constraints, indexes and triggers in the schema.
    async fn schema(&self) -> Vec<String> {
        let sql = "\
            with ours as (select c.oid from pg_class c where c.relnamespace = 'bugle'::regnamespace)
            select concat_ws(' ', a.attrelid::regclass, a.attname, a.atttypid::regtype, a.attnotnull, a.attidentity,
              pg_get_expr(d.adbin, d.adrelid))
            from pg_attribute a left join pg_attrdef d on (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
            where a.attrelid in (select oid from ours) and a.attnum > 0
            union all select concat_ws(' ', c.conrelid::regclass, c.conname, pg_get_constraintdef(c.oid))
            from pg_constraint c where c.connamespace = 'bugle'::regnamespace
            union all select pg_get_indexdef(i.indexrelid) from pg_index i where i.indrelid in (select oid from ours)
            union all select pg_get_triggerdef(t.oid) from pg_trigger t where t.tgrelid in (select oid from ours)
            order by 1";
        let rows = self.owner.query(sql, &[]).await.expect(sql);
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn pooler(&self) -> Option<(pgbouncer::PgBouncer, String)> {
        let mut config: Config = server().tcp_url(&self.database.name).unwrap().parse().unwrap();
        config.user(&self.login).password(&self.login);
        let pooler = pgbouncer::start(&config)?;
        drop(pooler.connect().await);
        let config: Config = pooler.url().parse().expect("a connection string");
        let Host::Tcp(host) = &config.get_hosts()[0] else {
            panic!("not over TCP");
        };
        let url = format!(
            "postgresql://{0}:{0}@{host}:{1}/{2}",
            self.login,
            config.get_ports()[0],
            self.database.name
        );
        Some((pooler, url))
    }
}

/// Over TCP, because JDBC knows no other way.
fn server() -> &'static PrivatePostgres {
    static SERVER: OnceLock<PrivatePostgres> = OnceLock::new();
    SERVER.get_or_init(|| {
        let options = Options::new().tcp().bugle_bin(BUGLE);
        PrivatePostgres::start(&options).expect("a server")
    })
}

/// What a program prints if it ends well, or all that it says if it does not.
async fn run(program: &mut Command) -> Result<String, String> {
    let output = tokio::time::timeout(2 * DEADLINE, program.kill_on_drop(true).output()).await;
    let Output { status, stdout, stderr } = output.expect("it ends").expect("it starts");
    let stdout = String::from_utf8_lossy(&stdout).into_owned();
    match status.success() {
        true => Ok(stdout),
        false => Err(stdout + &String::from_utf8_lossy(&stderr)),
    }
}

async fn node(section: &'static str, script: &str) {
    let Some(modules) = node_modules().await else { return };
    let project = Project::of(section, &["node/story.mjs", &format!("node/{script}")]);
    project.link(&modules);
    project.tells_the_story(&|| project.node(script)).await;
}

async fn rust(name: &'static str) {
    let Some(program) = rust_program(name).await else {
        return;
    };
    let project = Project::of(name, &["rust/src/main.rs"]);
    let story = || {
        let mut story = Command::new(&program);
        story.arg(name);
        story
    };
    project.tells_the_story(&story).await;
}

async fn python_packages() -> Option<PathBuf> {
    static PACKAGES: OnceCell<Option<PathBuf>> = OnceCell::const_new();
    let packages = PACKAGES.get_or_init(async || {
        if !can_run("python3").await {
            return missing("python3", "apt-get install python3 python3-pip");
        }
        let pip = |folder: &Path| {
            pin(folder, &["python/requirements.txt"]);
            let mut pip = Command::new("python3");
            pip.args(
                "-m pip install --quiet --disable-pip-version-check --no-compile --retries 1 --timeout 15 -r \
                requirements.txt --target ."
                    .split(' '),
            )
            .current_dir(folder);
            pip
        };
        let is_there = async |folder: &Path| is_pinned(folder, &["python/requirements.txt"]);
        let packages = fetched("orm-python", is_there, pip).await;
        packages.or_else(|| {
            missing(
                "SQLAlchemy or Django",
                "pip install -r tests/orm/python/requirements.txt",
            )
        })
    });
    packages.await.clone()
}

async fn node_modules() -> Option<PathBuf> {
    static MODULES: OnceCell<Option<PathBuf>> = OnceCell::const_new();
    let modules = MODULES.get_or_init(async || {
        if !can_run("node").await {
            return missing("node", "apt-get install nodejs npm");
        }
        let files = ["node/package.json", "node/package-lock.json"];
        let is_there = async |folder: &Path| is_pinned(folder, &files);
        let modules = fetched("orm-node", is_there, |folder| npm(folder, &files)).await;
        modules.or_else(|| missing("Drizzle, TypeORM or Sequelize", "cd tests/orm/node && npm ci"))
    });
    modules.await.clone()
}

/// 300 MB.
async fn prisma_modules() -> Option<PathBuf> {
    if !can_run("node").await {
        return missing("node", "apt-get install nodejs npm");
    }
    let files = ["prisma/package.json", "prisma/package-lock.json"];
    if !is_pinned(&cache("orm-prisma"), &files) && !all_are_wanted() {
        return missing("Prisma", "BUGLE_TEST_ORMS=all cargo test --test orm");
    }
    let is_there = async |folder: &Path| is_pinned(folder, &files);
    let modules = fetched_within(BUILD, "orm-prisma", is_there, |folder| npm(folder, &files)).await;
    modules.or_else(|| missing("Prisma", "cd tests/orm/prisma && npm ci"))
}

/// The crate with all three of Rust, which takes minutes to build for the first time.
async fn rust_program(name: &str) -> Option<PathBuf> {
    static PROGRAM: OnceCell<Option<(PathBuf, bool)>> = OnceCell::const_new();
    let program = PROGRAM.get_or_init(async || {
        let place = cache("orm-rust");
        let program = place.join("target/debug/bugle-test-orm");
        if !program.exists() && !all_are_wanted() {
            return missing(
                "a build of sqlx, diesel and sea-orm",
                "BUGLE_TEST_ORMS=all cargo test --test orm",
            );
        }
        std::fs::create_dir_all(place.join("src")).expect("a folder");
        for file in ["Cargo.toml", "Cargo.lock", "src/main.rs"] {
            std::fs::copy(source("rust").join(file), place.join(file)).expect("a copy");
        }
        for name in ["sqlx", "diesel", "sea-orm"] {
            put_files(section(name), &place.join("src"));
        }
        let build = |arguments: &str| {
            let mut cargo = cargo();
            cargo
                .args(arguments.split(' '))
                .current_dir(&place)
                .env("CARGO_TARGET_DIR", "target");
            cargo
        };
        if !succeeds(build("fetch --locked --quiet"), BUILD).await {
            return missing(
                "sqlx, diesel or sea-orm",
                "cargo fetch in tests/orm/rust, with a network",
            );
        }
        // diesel is linked to libpq
        let mut link = Command::new("pg_config");
        let libraries = link
            .arg("--libdir")
            .output()
            .await
            .map(|output| output.stdout)
            .unwrap_or_default();
        let has_libpq = Path::new(String::from_utf8_lossy(&libraries).trim())
            .join("libpq.so")
            .exists();
        let features = if has_libpq { " --features diesel" } else { "" };
        let built = succeeds(build(&format!("build --locked --offline --quiet{features}")), BUILD).await;
        assert!(
            built,
            "the crate of tests/orm/rust is not built: see cargo build in {}",
            place.display()
        );
        Some((program, has_libpq))
    });
    let (program, has_libpq) = program.await.as_ref()?;
    if name == "diesel" && !has_libpq {
        return missing("libpq, to link diesel to,", "apt-get install libpq-dev");
    }
    Some(program.clone())
}

fn all_are_wanted() -> bool {
    std::env::var("BUGLE_TEST_ORMS").is_ok_and(|which| which == "all")
}

fn npm(folder: &Path, files: &[&str]) -> Command {
    pin(folder, files);
    let mut npm = Command::new("npm");
    npm.args("ci --silent --no-audit --no-fund --ignore-scripts --fetch-retries=0 --fetch-timeout=20000".split(' '))
        .current_dir(folder);
    npm
}

/// Put the files that name the versions into the folder that is fetched into.
fn pin(folder: &Path, files: &[&str]) {
    for file in files {
        std::fs::copy(source(file), folder.join(Path::new(file).file_name().unwrap())).expect("a copy");
    }
}

/// Whether what was fetched are these versions.
fn is_pinned(folder: &Path, files: &[&str]) -> bool {
    files.iter().all(|file| {
        let theirs = std::fs::read(folder.join(Path::new(file).file_name().unwrap()));
        theirs.is_ok_and(|theirs| theirs == std::fs::read(source(file)).unwrap())
    })
}

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/orm").join(path)
}

/// The text under a heading, up to the next of its rank.
fn section(heading: &str) -> &'static str {
    let start = ["# ", "## ", "### "]
        .iter()
        .find_map(|mark| PAGE.split_once(&format!("{mark}{heading}\n")))
        .unwrap_or_else(|| panic!("there is no section {heading}"))
        .1;
    start.split("\n## ").next().unwrap()
}

/// What stands between the fences of a section that have this word.
fn blocks(section: &str, kind: &str) -> Vec<String> {
    let begin = format!("```{kind}\n");
    let blocks = section.split(&begin).skip(1);
    blocks
        .map(|rest| rest.split("```").next().expect("an end").to_owned())
        .collect()
}

/// Write the blocks of a section that begin with the name of a file.
fn put_files(section: &str, folder: &Path) {
    let fences: Vec<&str> = section.split("```").collect();
    let blocks = fences.iter().skip(1).step_by(2);
    for text in blocks.filter_map(|block| block.split_once('\n')).map(|(_, text)| text) {
        let first = text.lines().next().unwrap_or_default();
        let name = first.trim_start_matches(['#', '/']).trim();
        if !first.starts_with(['#', '/']) || name.contains(' ') || !name.contains('.') {
            continue;
        }
        let file = folder.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).expect("a folder");
        std::fs::write(&file, text).expect("a file");
    }
}

/// The rows of the tables of a section.
fn rows(heading: &str) -> Vec<Vec<String>> {
    let lines = section(heading).lines().filter(|line| line.starts_with('|'));
    lines
        .map(|line| {
            line.trim_matches('|')
                .split('|')
                .map(|cell| cell.trim().to_owned())
                .collect()
        })
        .collect()
}

/// The row that begins with a name.
fn row(heading: &str, name: &str) -> Vec<String> {
    let mut rows = rows(heading).into_iter();
    rows.find(|row| row[0].split(", ").any(|cell| cell == name))
        .unwrap_or_else(|| panic!("{heading} has no row for {name}"))
}

/// What stands between backticks.
fn code(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}
