//! The command line with arbitrary arguments, standard input and files: it does its work, or reports what is wrong and
//! exits with a documented code (docs/reference/errors.md). It never panics, and rejected input changes nothing.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use fastrand::Rng;
use tokio_postgres::Client;

use super::random_seed::seed;
use crate::common::{BUGLE, Database, Folder, query_value, side_by_side};

const RUNS: usize = 600;
const LANES: usize = 3;
/// Ten times longer than anything asked here takes.
const LONGEST: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_accepts_everything_or_refuses_it_with_an_error_of_its_own() {
    let seed = seed("BUGLE_FUZZ_SEED");

    let lanes = (0..LANES).map(|lane| async move {
        let database = Database::new().await;
        let owner = database.owner().await;
        let folder = Folder::new();
        let mut rng = Rng::with_seed(seed + lane as u64);
        let mut strange = Vec::new();
        let (mut before, mut refused) = (state(&owner).await, 0);
        for _ in 0..RUNS / LANES {
            let call = Call::random(&mut rng, &folder);
            let output = call.run(&database.url("owner")).await;
            let after = state(&owner).await;
            refused += usize::from(!output.status.success());
            if let Some(why) = objection(&output, before == after) {
                let said = String::from_utf8_lossy(&output.stderr);
                let said: String = said.chars().take(600).collect();
                strange.push(format!("{why}: {call}\n  {:?}: {said}", output.status));
            }
            before = after;
        }
        (strange, refused)
    });
    let lanes = side_by_side(lanes, LANES).await;

    let refused: usize = lanes.iter().map(|(_, refused)| refused).sum();
    println!(
        "fuzz: {} calls of the command line, {refused} refused",
        RUNS / LANES * LANES
    );
    let strange: Vec<&String> = lanes.iter().flat_map(|(strange, _)| strange).collect();
    assert!(
        strange.is_empty(),
        "BUGLE_FUZZ_SEED={seed}\n{}",
        strange.iter().map(|s| s.as_str()).collect::<Vec<_>>().join("\n")
    );
    assert!(refused > RUNS / 4 && refused < RUNS, "{refused} of {RUNS}");
}

/// What is wrong with how it ended.
fn objection(output: &Output, nothing_changed: bool) -> Option<&'static str> {
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        _ if said.contains("panicked") => Some("it panicked"),
        None => Some("it was killed, or did not end"),
        Some(0) => None,
        Some(1 | 2) if output.stderr.is_empty() && output.stdout.is_empty() => Some("it does not say why"),
        // of arguments it cannot read at all the whole word is shown
        Some(1) if said.len() > 4000 => Some("it says far too much"),
        Some(1 | 2) if !nothing_changed => Some("it was refused and changed something"),
        Some(1 | 2) => None,
        Some(_) => Some("this exit code is not documented"),
    }
}

/// All that can be changed, in a few letters.
async fn state(owner: &Client) -> String {
    let tables = [
        "jobs",
        "queues",
        "commands",
        "schedules",
        "changes",
        "idempotency_keys",
        "retry_policies",
        "settings",
        "dependencies",
        "workflow_jobs",
        "step_records",
        "attempts",
    ];
    let sums =
        tables.map(|table| format!("(select md5(string_agg(t::text, '' order by t::text)) from bugle.{table} t)"));
    let sql = format!("select concat_ws(' ', {})", sums.join(", "));
    query_value(owner, &sql).await
}

/// One call: what it is given, and what is on its standard input.
struct Call {
    arguments: Vec<OsString>,
    input: Vec<u8>,
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let short = |text: String| text.chars().take(120).collect::<String>();
        let arguments: Vec<String> = self.arguments.iter().map(|a| short(format!("{a:?}"))).collect();
        let input = short(String::from_utf8_lossy(&self.input).into_owned());
        write!(f, "bugle {} < {input:?}", arguments.join(" "))
    }
}

/// What is asked; T is a text, N a number, J is JSON, W a time, D a duration, F a file.
const FORMS: &[&str] = &[
    "enqueue T J",
    "enqueue T -",
    "enqueue --jsonl -",
    "enqueue T --jsonl -",
    "enqueue --jsonl F",
    "enqueue T J --queue T --priority N",
    "enqueue T J --run-at W --deadline W",
    "enqueue T J --in D --timeout D",
    "enqueue T J --max-attempts N --retry-policy T",
    "enqueue T J --header T --header T",
    "enqueue T J --unique-key T --on-conflict T",
    "enqueue T J --idempotency-key T --idempotency-ttl D",
    "enqueue T J --after N",
    "enqueue T J --step T --step T",
    "enqueue T J --order-key T --limit-key T --fair-key T",
    "enqueue T J --print-sql --queue T",
    "jobs list --queue T --command T",
    "jobs list --state T --since D --limit N",
    "jobs list --error-like T --json",
    "jobs list --ended-since D --code T --fingerprint T",
    "policies set T --kind T --retries N --delay D",
    "jobs show N",
    "jobs explain N",
    "jobs answer N --result J --token T",
    "jobs answer N --error T",
    "jobs answer N --resume J",
    "jobs add-missing T -",
    "jobs add-missing T F",
    "jobs cancel N --note T",
    "jobs cancel --command T --yes",
    "jobs pause N",
    "jobs restart N",
    "jobs remove N",
    "jobs reschedule N --at W",
    "jobs set-priority N N",
    "jobs set-step N T T --output J",
    "queues pause T --note T",
    "queues set T --max-running N --max-starts T",
    "queues set T --max-running-per-key N --order-on-retry T",
    "queues limit-command T N",
    "schedules add T J --cron T --command T --timezone T",
    "schedules add T --every D --command T --starts-at W",
    "schedules preview T --timezone T",
    "schedules pause T",
    "workers pause N",
    "workflow enqueue -",
    "workflow enqueue F",
    "workflow show N",
    "stats errors --since D",
    "config show --config F",
    "worker --until-empty --config F",
    "migrate status --database-url T",
    "doctor --database-url T",
    "T T T",
];

impl Call {
    fn random(rng: &mut Rng, folder: &Folder) -> Call {
        let form = rng.choice(FORMS).expect("one");
        let mut arguments = Vec::new();
        for word in form.split(' ') {
            arguments.push(match word {
                "T" => argument(text(rng)),
                "N" => number(rng).into(),
                "J" => argument(json(rng)),
                "W" => rng
                    .choice([
                        "now",
                        "tomorrow",
                        "infinity",
                        "yesterday",
                        "2026-02-30",
                        "",
                        "294277-01-01",
                        "now()",
                    ])
                    .expect("one")
                    .into(),
                "D" => rng
                    .choice([
                        "1s",
                        "0s",
                        "-1s",
                        "1e99d",
                        "9999999999999h",
                        "",
                        "1 fortnight",
                        "10m",
                        "NaNs",
                    ])
                    .expect("one")
                    .into(),
                "F" => file(rng, folder),
                word => word.into(),
            });
        }
        // something too many, too few, or in the wrong place
        if rng.u8(..8) == 0 {
            let at = rng.usize(..=arguments.len());
            arguments.insert(at, argument(text(rng)));
        }
        if rng.u8(..12) == 0 {
            arguments.remove(rng.usize(..arguments.len()));
        }
        let input = lines(rng);
        Call { arguments, input }
    }

    async fn run(&self, url: &str) -> Output {
        let mut command = Command::new(BUGLE);
        command
            .args(&self.arguments)
            .env("DATABASE_URL", url)
            .env("RUST_BACKTRACE", "0")
            .env_remove("BUGLE_DATABASE_URL")
            .env_remove("BUGLE_CONFIG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let input = self.input.clone();
        let ended = tokio::task::spawn_blocking(move || {
            let mut child = command.spawn().expect("bugle starts");
            let mut stdin = child.stdin.take().expect("a pipe");
            let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a pid");
            let (ended, wait) = std::sync::mpsc::channel::<()>();
            let watch = std::thread::spawn(move || {
                if wait.recv_timeout(LONGEST) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            });
            // the reader may be gone
            let feed = std::thread::spawn(move || drop(stdin.write_all(&input)));
            let output = child.wait_with_output().expect("it ends");
            drop(ended);
            let _ = (feed.join(), watch.join());
            output
        });
        ended.await.expect("no panic")
    }
}

/// An argument has no NUL, and need not be text.
fn argument(mut bytes: Vec<u8>) -> OsString {
    bytes.retain(|byte| *byte != 0);
    bytes.truncate(100_000);
    OsString::from_vec(bytes)
}

fn number(rng: &mut Rng) -> &'static str {
    rng.choice([
        "1",
        "2",
        "3",
        "0",
        "-1",
        "9223372036854775807",
        "9223372036854775808",
        "2147483648",
        "1e3",
        "",
        "٣",
        "0x1",
        "none",
        "1/2s",
    ])
    .expect("one")
}

fn text(rng: &mut Rng) -> Vec<u8> {
    let text = match rng.u8(..60) {
        24..50 | 0..6 => "noop",
        50.. | 6..9 => "default",
        9 => "",
        10 => " \t\n",
        11 => "'; drop schema bugle cascade; --",
        12 => "\u{1F980}\u{0301}\u{FFFF}\u{10FFFF}\u{202e}",
        13 => "% %s {} {0} $1 \\ \u{1}\u{7f}\u{1b}[31m",
        14 => "--",
        15 => "-x=--y",
        16 => "keep",
        17 => "* * * * *",
        18 => "a=b=c",
        19 => "host=127.0.0.1 port=1 user=x dbname=y",
        20 => "postgres://[::1/%zz?sslmode=x",
        21 => return b"\xed\xa0\x80 half a pair \xff\xfe".to_vec(),
        22 => return b"x".repeat(rng.usize(300..100_000)),
        _ => return (0..rng.usize(1..30)).map(|_| rng.u8(1..)).collect(),
    };
    text.as_bytes().to_vec()
}

fn json(rng: &mut Rng) -> Vec<u8> {
    let text = match rng.u8(..40) {
        18.. | 0..5 => "{}",
        5 => "null",
        6 => "{\"a\": \"\\ud800\"}",
        7 => "{\"a\": \"\\u0000\"}",
        8 => "1e400",
        9 => "123456789012345678901234567890.123456789012345678901234567890",
        10 => "{\"a\": 1, \"a\": 2}",
        11 => "{\"a\": }",
        12 => "\"text\"",
        13 => return [b"[".repeat(3000), b"]".repeat(3000)].concat(),
        14 => return [b"\"".to_vec(), b"z".repeat(90_000), b"\"".to_vec()].concat(),
        15 => return text(rng),
        16 => "[1, 2",
        _ => "\u{feff}{}",
    };
    text.as_bytes().to_vec()
}

/// Lines of JSON, of jobs mostly, with everything between them.
fn lines(rng: &mut Rng) -> Vec<u8> {
    let mut all = Vec::new();
    for _ in 0..rng.usize(..5) {
        let line: Vec<u8> = match rng.u8(..14) {
            0..3 => br#"{"command": "noop", "payload": {"a": 1}}"#.to_vec(),
            3 => br#"{"command": "", "payload": {}}"#.to_vec(),
            4 => br#"{"command": "noop", "queue": 7, "priority": "x"}"#.to_vec(),
            5 => br#"{"command": "noop", "state": "completed", "claim": 3}"#.to_vec(),
            6 => br#"{"key": "a", "payload": {"n": 1}}"#.to_vec(),
            7 => br#"{"jobs": {"a": {"command": "noop"}, "b": {"command": "noop", "after": ["a"]}}}"#.to_vec(),
            8 => b"\0\0\0".to_vec(),
            9 => b"\xff\xfe\x00{".to_vec(),
            10 => [
                br#"{"command": "noop", "payload": ""#.to_vec(),
                b"q".repeat(2_000_000),
                b"\"}".to_vec(),
            ]
            .concat(),
            11 => Vec::new(),
            12 => br#"{"command": "noop", "run_at": "never", "deadline": "now"}"#.to_vec(),
            _ => json(rng),
        };
        all.extend(line);
        all.extend(if rng.u8(..6) == 0 { b"\r".as_slice() } else { b"\n" });
    }
    all
}

/// A file that is what it should be, is not, is not there, or is a folder.
fn file(rng: &mut Rng, folder: &Folder) -> OsString {
    let path = folder.join(&format!("f{}", rng.u32(..)));
    let content: Vec<u8> = match rng.u8(..9) {
        0 => return folder.path().into(),
        1 => return "/nowhere/at/all".into(),
        2 => return "/dev/null".into(),
        3 => b"[queues]\ndefault = 99999999999999999999\n".to_vec(),
        4 => b"[queues]\ndefault = 1\n[commands.a]\nprogram = [\"\\u0000\"]\nsql = 1\n".to_vec(),
        5 => b"\xff\xfe[\0q\0".to_vec(),
        6 => b"# "
            .iter()
            .copied()
            .chain(std::iter::repeat_n(b'x', 3_000_000))
            .collect(),
        7 => b"x = [".repeat(500),
        _ => lines(rng),
    };
    std::fs::write(&path, content).expect("a file");
    path.into()
}
