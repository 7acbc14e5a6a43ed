use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode::{Backspace, Char, Down, Enter, Esc, Tab};

use super::draw::wrapped;
use super::*;

fn queue(name: &str, ready: i64, paused: bool) -> Queue {
    Queue {
        queue: name.into(),
        ready,
        running: 2,
        scheduled: 1,
        retrying: 1,
        waiting: 0,
        paused: 0,
        oldest_ready_seconds: Some(75.0),
        due_next: None,
        completed_last_minute: 120,
        failed_last_minute: 0,
        workers: 1,
        slots: 4,
        unserved_commands: Vec::new(),
        is_estimate: ready > 10_000,
        paused_since: paused.then(SystemTime::now),
        limits: None,
    }
}

fn job(id: JobId, state: State, command: &str) -> JobSummary {
    let now = SystemTime::now();
    JobSummary {
        id,
        state,
        command: command.into(),
        queue: "mail".into(),
        priority: 0,
        attempt: 3,
        reason: None,
        last_error_code: None,
        error_line: (state == State::Failed).then(|| "connection refused\x1b[31m".into()),
        created_at: now,
        run_at: now,
        started_at: Some(now - Duration::from_secs(5)),
        finished_at: None,
    }
}

fn seen(body: Body) -> Seen {
    Seen {
        now: SystemTime::now(),
        queues: vec![queue("mail", 7, false), queue("bulk", 20_000, true)],
        minutes: Vec::new(),
        body,
    }
}

fn failed() -> Body {
    Body::Jobs(
        vec![
            job(17, State::Failed, "send_mail"),
            job(18, State::Failed, "resize"),
            job(19, State::Failed, "send_mail"),
        ],
        None,
    )
}

/// On the list of failed jobs.
fn on_failed() -> Screen {
    let mut screen = Screen::new("shop as ada".into(), seen(Body::Queues));
    assert_eq!(screen.press(Char('9')), Act::Read);
    assert_eq!(*screen.view(), of_state(State::Failed));
    screen.see(seen(failed()));
    screen
}

fn drawn(screen: &mut Screen) -> String {
    drawn_on(screen, 120)
}

fn drawn_on(screen: &mut Screen, width: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, 24)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let cells: Vec<&str> = buffer.content.iter().map(|cell| cell.symbol()).collect();
    cells.chunks(width.into()).map(|line| line.concat() + "\n").collect()
}

fn press(screen: &mut Screen, keys: &[KeyCode]) -> Act {
    keys.iter().fold(Act::Nothing, |_, key| screen.press(*key))
}

#[test]
fn queues_are_shown_with_their_state_and_nothing_steers_the_terminal() {
    let text = drawn(&mut Screen::new("shop as ada".into(), seen(Body::Queues)));

    for part in [
        "shop as ada",
        "mail",
        "~20000",
        "1m 15s",
        "2/4",
        "PAUSED",
        "1 paused",
        "q quit",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(!drawn(&mut on_failed()).contains('\x1b'));
}

#[test]
fn the_error_of_a_job_is_shown_also_on_80_columns() {
    let text = drawn_on(&mut on_failed(), 80);

    assert!(text.contains("connection refused"), "{text}");
    assert!(!text.contains("QUEUE"), "columns that do not fit are left out:\n{text}");
}

#[test]
fn every_change_is_confirmed() {
    let mut screen = Screen::new("shop".into(), seen(Body::Queues));

    assert_eq!(press(&mut screen, &[Down, Char('p')]), Act::Nothing);
    assert!(drawn(&mut screen).contains("pause queue bulk? y/n"));
    assert_eq!(screen.press(Char('n')), Act::Nothing);
    assert_eq!(
        press(&mut screen, &[Char('u'), Char('y')]),
        Act::Fleet(FleetVerb::ResumeQueue, "bulk".into())
    );
    screen.press(Char('2'));
    screen.see(seen(Body::Workers(Vec::new())));
    assert_eq!(
        press(&mut screen, &[Char('d'), Char('y')]),
        Act::Nothing,
        "there is no worker"
    );
    assert_eq!(screen.press(Char('q')), Act::Quit);
}

#[test]
fn a_verb_is_for_the_marked_jobs_or_the_selected_one() {
    let mut screen = on_failed();

    assert_eq!(
        press(&mut screen, &[Char('r'), Char('y')]),
        Act::Jobs(Verb::Restart, vec![17])
    );
    press(&mut screen, &[Char(' '), Down, Char(' ')]);
    assert!(drawn(&mut screen).contains("2 marked"));
    screen.press(Char('x'));
    assert!(drawn(&mut screen).contains("remove 2 jobs? y/n"));
    assert_eq!(screen.press(Char('y')), Act::Jobs(Verb::Remove, vec![17, 19]));
    assert_eq!(
        press(&mut screen, &[Char('*'), Char('c'), Char('y')]),
        Act::Jobs(Verb::Cancel, vec![17, 18, 19])
    );
}

#[test]
fn a_filter_narrows_the_list_and_what_all_means() {
    let mut screen = on_failed();

    press(
        &mut screen,
        &[Char('/'), Char('M'), Char('a'), Char('i'), Char('k'), Backspace],
    );
    press(&mut screen, &[Char('l'), Enter]);
    // all of them are in the queue mail
    assert!(drawn(&mut screen).contains("matching \"Mail\" (3 of 3)"));
    press(&mut screen, &[Esc, Char('/'), Char('r'), Char('e'), Char('s'), Enter]);
    assert!(drawn(&mut screen).contains("matching \"res\" (1 of 3)"));
    assert_eq!(
        press(&mut screen, &[Char('*'), Char('r'), Char('y')]),
        Act::Jobs(Verb::Restart, vec![18])
    );
    press(&mut screen, &[Esc]);
    assert!(drawn(&mut screen).contains("(3)"));
}

#[test]
fn enter_opens_and_escape_goes_back() {
    let mut screen = Screen::new("shop".into(), seen(Body::Queues));
    let of_mail = View::Jobs(Jobs {
        queue: Some("mail".into()),
        ..Jobs::default()
    });

    assert_eq!(screen.press(Enter), Act::Read);
    assert_eq!(*screen.view(), of_mail);
    screen.see(seen(failed()));
    press(&mut screen, &[Down, Enter]);
    assert_eq!(*screen.view(), View::Job(18));
    screen.see(seen(Body::Job(None)));
    assert!(drawn(&mut screen).contains("This job is gone"));
    assert_eq!(
        press(&mut screen, &[Char('r'), Char('y')]),
        Act::Jobs(Verb::Restart, vec![18])
    );
    screen.press(Esc);
    assert_eq!(*screen.view(), of_mail);
    screen.press(Esc);
    assert_eq!(*screen.view(), View::Queues);
    screen.press(Esc);
    assert_eq!(*screen.view(), View::Queues, "nothing is behind it");
    screen.press(Tab);
    assert_eq!(*screen.view(), View::Workers);
}

#[test]
fn numbers_are_sorted_by_their_size() {
    let mut screen = Screen::new("shop".into(), seen(Body::Queues));
    let first = |screen: &Screen| screen.subject();

    press(&mut screen, &[Char('s'), Char('s'), Char('s')]);
    assert_eq!(
        first(&screen),
        Some(Subject::Queue("mail".into())),
        "7 is less than ~20000"
    );
    press(&mut screen, &[Char('S')]);
    assert_eq!(first(&screen), Some(Subject::Queue("bulk".into())));
    assert!(drawn(&mut screen).contains("READY▼"));
}

#[test]
fn the_selection_stays_on_its_job_when_the_list_changes() {
    let mut screen = on_failed();
    press(&mut screen, &[Down, Char(' ')]);
    assert_eq!(screen.subject(), Some(Subject::Job(19)));

    screen.see(seen(Body::Jobs(
        vec![job(20, State::Failed, "new"), job(19, State::Failed, "send_mail")],
        None,
    )));

    assert_eq!(screen.subject(), Some(Subject::Job(19)));
    assert_eq!(
        press(&mut screen, &[Char('r'), Char('y')]),
        Act::Jobs(Verb::Restart, vec![19]),
        "the marked one is gone, and no longer marked"
    );
}

#[test]
fn help_names_every_key() {
    let mut screen = Screen::new("shop".into(), seen(Body::Queues));
    screen.press(Char('?'));

    let text = drawn(&mut screen);
    for part in ["filter the list", "c cancel", "d drain", "n run now"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert_eq!(screen.press(Char('q')), Act::Nothing, "any key closes it");
}

#[test]
fn ctrl_c_quits_and_cancels_nothing() {
    let mut screen = on_failed();
    let with_control = |letter| KeyEvent::new(Char(letter), KeyModifiers::CONTROL);

    assert_eq!(screen.press_with(with_control('c')), Act::Quit);
    assert_eq!(screen.press_with(with_control('r')), Act::Nothing);
    assert!(!drawn(&mut screen).contains("y/n"), "nothing is to be confirmed");
    screen.press_with(KeyEvent::from(Char('c')));
    assert!(
        drawn(&mut screen).contains("cancel job 17? y/n"),
        "without Ctrl it is the verb"
    );
}

#[test]
fn a_list_that_is_cut_says_how_many_there_are() {
    let mut screen = on_failed();
    let Body::Jobs(jobs, _) = failed() else { panic!() };

    screen.see(seen(Body::Jobs(jobs.clone(), Some((1_501, false)))));
    assert!(drawn(&mut screen).contains("(3 of 1501)"), "{}", drawn(&mut screen));
    press(&mut screen, &[Char('*'), Char('r')]);
    let question = "restart 3 jobs (the newest; 1498 older ones stay: bugle jobs takes all)? y/n";
    assert!(drawn(&mut screen).contains(question), "{}", drawn(&mut screen));
    press(
        &mut screen,
        &[Char('n'), Char('*'), Char(' '), Down, Char(' '), Char('r')],
    );
    assert!(drawn(&mut screen).contains("restart 2 jobs? y/n"), "those were chosen");
    screen.press(Char('n'));
    screen.see(seen(Body::Jobs(jobs, Some((100_000, true)))));
    assert!(drawn(&mut screen).contains("(3 of more than 100000)"));
}

#[test]
fn a_page_ends_with_the_end_of_its_last_long_line() {
    let long = (1..=60).map(|number| format!("word{number} ")).collect::<String>();
    for width in [20, 33, 118] {
        let rows = wrapped(&long, width);
        assert!(rows.iter().all(|row| row.trim_end().len() <= width), "{rows:?}");
        assert_eq!(rows.join(" ").split_whitespace().count(), 60);
    }
    assert_eq!(wrapped("東東東", 4), ["東東", "東"]);
    assert_eq!(wrapped("", 4), [""]);
    assert_eq!(wrapped("abcdef", 4), ["abcd", "ef"]);
}

#[test]
fn an_error_of_the_database_is_shown_and_what_was_seen_stays() {
    let mut screen = on_failed();

    screen.fail("connection closed".into());
    let text = drawn(&mut screen);
    assert!(
        text.contains("not refreshed: connection closed") && text.contains("send_mail"),
        "{text}"
    );
    screen.answered();
    assert!(!drawn(&mut screen).contains("not refreshed"));
}

#[test]
fn cancelled_jobs_have_a_tab() {
    let mut screen = on_failed();

    assert_eq!(screen.press(Char('-')), Act::Read);
    assert_eq!(*screen.view(), of_state(State::Cancelled));
    assert!(drawn_on(&mut screen, 160).contains("- cancelled"));
}
