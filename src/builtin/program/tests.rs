use std::fs;

use super::super::testing::{TestJob, completed, eventually, failed};
use rustix::process::Pid;

use super::*;
use crate::config::{Action, Config};

fn program(toml: &str) -> Program {
    let config = Config::from_toml(&format!("[commands.x]\n{toml}")).unwrap();
    let Action::Program(program) = &config.commands["x"].action else {
        panic!("no program")
    };
    Program::new(program, Duration::from_secs(60), &|name| {
        (name == "SET").then(|| "from outside".into())
    })
    .unwrap()
}

fn shell(script: &str) -> Program {
    program(&format!("program = ['sh', '-c', '''{script}''']"))
}

async fn run(program: &Program, payload: &str) -> Outcome {
    program.execute(TestJob::new(payload).context.clone()).await
}

fn is_alive(pid: &str) -> bool {
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    rustix::process::test_kill_process(pid).is_ok() && !is_zombie(pid)
}

fn is_zombie(pid: Pid) -> bool {
    fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).is_ok_and(|stat| stat.contains(") Z "))
}

#[tokio::test]
async fn the_payload_is_its_stdin_and_its_stdout_is_the_result() {
    let echo = program("program = ['cat']");

    assert_eq!(
        completed(run(&echo, r#"{"a": [1, "ü"]}"#).await).unwrap(),
        r#"{"a": [1, "ü"]}"#
    );
}

#[tokio::test]
async fn nothing_on_stdout_is_no_result() {
    assert_eq!(completed(run(&shell("cat >/dev/null"), "{}").await), None);
}

#[tokio::test]
async fn a_program_need_not_read_its_stdin() {
    let large = format!("\"{}\"", "x".repeat(1_000_000));

    assert_eq!(completed(run(&program("program = ['true']"), &large).await), None);
    assert_eq!(completed(run(&shell("exec 0<&-; echo 1"), &large).await).unwrap(), "1");
}

#[tokio::test]
async fn it_learns_about_its_job_from_the_environment() {
    let says =
        shell(r#"printf "\"$BUGLE_JOB_ID $BUGLE_ATTEMPT $BUGLE_COMMAND $BUGLE_QUEUE $(basename $BUGLE_WORKDIR)\"""#);

    assert_eq!(
        completed(run(&says, "{}").await).unwrap(),
        "\"17 3 try default job-17-claim-42\""
    );
}

#[tokio::test]
async fn its_own_variables_come_from_the_file_and_from_outside() {
    let says = program("program = ['sh', '-c', 'echo \"\\\"$A $B\\\"\"']\nenv = { A = 'here', B = 'env:SET' }");

    assert_eq!(completed(run(&says, "{}").await).unwrap(), "\"here from outside\"");
}

#[tokio::test]
async fn it_starts_where_the_file_says() {
    let says = |cwd: &str| program(&format!("program = ['sh', '-c', 'echo \"\\\"$(pwd -P)\\\"\"']\n{cwd}"));
    let here = std::env::current_dir().unwrap().canonicalize().unwrap();

    assert_eq!(completed(run(&says(""), "{}").await).unwrap(), format!("{here:?}"));
    assert_eq!(completed(run(&says("cwd = '/'"), "{}").await).unwrap(), "\"/\"");
    assert!(
        completed(run(&says("cwd = 'workdir'"), "{}").await)
            .unwrap()
            .ends_with("/job-17-claim-42\"")
    );
    let failure = failed(run(&says("cwd = '/nowhere'"), "{}").await);
    assert!(failure.message.contains("/nowhere"), "{failure:?}");
}

#[tokio::test]
async fn the_exit_code_says_whether_to_try_again() {
    let strict = "no_retry_exit_codes = [3, 78]";
    for (code, more, retryable) in [
        (1, "", true),
        (65, "", false),
        (78, "", true),
        (65, strict, true),
        (78, strict, false),
    ] {
        let exits = program(&format!("program = ['sh', '-c', 'echo why >&2; exit {code}']\n{more}"));

        let failure = failed(run(&exits, "{}").await);

        assert_eq!(failure.code.unwrap(), format!("exit_{code}"));
        assert_eq!(failure.retryable, retryable, "{code} {more}");
        assert_eq!(failure.message, format!("the program exited with code {code}\nwhy"));
    }
}

#[tokio::test]
async fn a_signal_is_told_and_may_pass() {
    let failure = failed(run(&shell("kill -9 $$"), "{}").await);

    assert_eq!(failure.code.as_deref(), Some("signal_9"));
    assert!(failure.retryable);
}

#[tokio::test]
async fn stdout_that_is_no_json_is_a_failure_that_stays() {
    let failure = failed(run(&shell("echo very secret; echo context >&2"), "{}").await);

    assert_eq!(failure.code.as_deref(), Some("bad_result"));
    assert!(!failure.retryable);
    assert!(
        failure.message.ends_with("\ncontext") && !failure.message.contains("secret"),
        "{}",
        failure.message
    );
}

#[tokio::test]
async fn of_a_long_stderr_the_end_is_kept_as_text() {
    let script = r#"head -c 10000000 /dev/zero | tr "\0" x >&2; printf "\377\000 the end\n" >&2; exit 1"#;

    let message = failed(run(&shell(script), "{}").await).message;

    assert!(message.ends_with("x\u{fffd} the end"), "{message}");
    assert!(message.len() < 4200);
}

#[tokio::test]
async fn a_flood_on_stdout_is_stopped() {
    let job = TestJob::new("{}");
    let floods = shell("echo $$ >$BUGLE_WORKDIR/../pid; head -c 10000000 /dev/zero; sleep 600");

    let failure = failed(floods.execute(job.context.clone()).await);

    assert_eq!(failure.code.as_deref(), Some("output_too_large"));
    let pid = fs::read_to_string(job.workspaces.path().join("pid")).unwrap();
    eventually("the program is gone", || !is_alive(&pid)).await;
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named_and_may_be_installed() {
    let failure = failed(run(&program("program = ['no-such-program']"), "{}").await);

    assert_eq!(failure.code.as_deref(), Some("not_found"));
    assert!(failure.retryable && failure.message.contains("\"no-such-program\""));
}

#[test]
fn a_file_that_cannot_be_run_says_what_it_lacks() {
    // simulated, because a file that was just written may still be open in a process that another test
    // starts
    let script = program("program = ['./script']");
    let told = |errno: Errno| script.setup.not_started(&errno.into());

    let (not_executable, without_interpreter) = (told(Errno::ACCESS), told(Errno::NOEXEC));

    assert_eq!(not_executable.code.as_deref(), Some("not_started"));
    assert!(
        not_executable.message.contains("chmod +x ./script"),
        "{not_executable:?}"
    );
    assert_eq!(without_interpreter.code.as_deref(), Some("not_started"));
    assert!(
        without_interpreter.message.contains("#!/bin/sh"),
        "{without_interpreter:?}"
    );
}

/// Starts another process in the group and writes its id to a file.
const FAMILY: &str = "sleep 600 & echo $! >$BUGLE_WORKDIR/../new && mv $BUGLE_WORKDIR/../new $BUGLE_WORKDIR/../pid;";

#[tokio::test]
async fn an_attempt_that_is_dropped_takes_the_whole_group_along() {
    let job = TestJob::new("{}");
    let told = job.workspaces.path().join("pid");
    let attempt = tokio::spawn(shell(&format!("{FAMILY} wait")).execute(job.context.clone()));
    eventually("the program has started", || told.exists()).await;
    let pid = fs::read_to_string(told).unwrap();
    assert!(is_alive(&pid));

    attempt.abort();

    eventually("the grandchild is gone", || !is_alive(&pid)).await;
}

#[tokio::test]
async fn what_a_program_leaves_running_in_its_group_is_killed() {
    let job = TestJob::new("{}");

    let outcome = shell(&format!("{FAMILY} echo 1")).execute(job.context.clone()).await;

    assert_eq!(completed(outcome).unwrap(), "1");
    let pid = fs::read_to_string(job.workspaces.path().join("pid")).unwrap();
    eventually("the grandchild is gone", || !is_alive(&pid)).await;
}

#[tokio::test]
async fn a_program_that_is_asked_to_stop_may_still_finish() {
    let job = TestJob::new("{}");
    let told = job.workspaces.path().join("ready");
    let script = "trap \"echo 7; exit 0\" TERM; touch $BUGLE_WORKDIR/../ready; while :; do sleep 0.01; done";
    let polite = program(&format!("program = ['sh', '-c', '{script}']\nkill_after = '2m'"));
    let attempt = tokio::spawn(polite.execute(job.context.clone()));
    eventually("the program has started", || told.exists()).await;

    job.context.cancellation().cancel();

    assert_eq!(completed(attempt.await.unwrap()).unwrap(), "7");
}

#[tokio::test]
async fn a_program_that_does_not_stop_when_asked_is_killed() {
    let job = TestJob::new("{}");
    let told = job.workspaces.path().join("ready");
    let script = "trap : TERM; touch $BUGLE_WORKDIR/../ready; while :; do sleep 0.01; done";
    let stubborn = program(&format!("program = ['sh', '-c', '{script}']\nkill_after = '50ms'"));
    let attempt = tokio::spawn(stubborn.execute(job.context.clone()));
    eventually("the program has started", || told.exists()).await;

    job.context.cancellation().cancel();

    assert_eq!(failed(attempt.await.unwrap()).code.as_deref(), Some("stopped"));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn somebody_who_left_the_group_neither_holds_the_attempt_nor_outlives_it() {
    let job = TestJob::new("{}");
    let script = "setsid sleep 600 & echo $! >$BUGLE_WORKDIR/../pid; echo 1";

    let outcome = tokio::time::timeout(Duration::from_secs(120), shell(script).execute(job.context.clone())).await;

    assert_eq!(completed(outcome.expect("it does not wait")).unwrap(), "1");
    let pid = fs::read_to_string(job.workspaces.path().join("pid")).unwrap();
    eventually("it is gone", || !is_alive(&pid)).await;
}

#[tokio::test]
async fn the_working_folder_is_gone_with_the_attempt() {
    let job = TestJob::new("{}");
    let outcome = shell("echo x >$BUGLE_WORKDIR/file").execute(job.context.clone()).await;
    assert_eq!(completed(outcome), None);
    let folder = job.context.workspace().unwrap().to_path_buf();
    assert!(folder.join("file").exists());

    drop(job.context);

    assert!(!folder.exists());
}
