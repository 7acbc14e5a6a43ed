use super::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

fn seen() -> Seen {
    let now = SystemTime::now();
    let queue = |name: &str, ready| Queue {
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
        unserved_commands: vec!["nobody".into()],
        is_estimate: ready > 10_000,
        paused_since: None,
        limits: None,
    };
    let job = |id, state: &str| JobLine {
        id,
        state: state.into(),
        command: "send\x1b[31m".into(),
        queue: "mail".into(),
        priority: 0,
        attempt: 3,
        reason: (state == "failed").then(|| "attempts".into()),
        last_error_code: None,
        created_at: now,
        run_at: now,
        started_at: Some(now - Duration::from_secs(5)),
        finished_at: None,
    };
    Seen {
        now,
        queues: vec![queue("mail", 7), queue("bulk", 20_000)],
        workers: Vec::new(),
        running: vec![job(17, "running")],
        failed: vec![job(18, "failed")],
    }
}

fn drawn(screen: &Screen) -> String {
    let mut terminal = Terminal::new(TestBackend::new(120, 40)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let width = buffer.area.width as usize;
    let cells: Vec<&str> = buffer.content.iter().map(|cell| cell.symbol()).collect();
    cells.chunks(width).map(|line| line.concat() + "\n").collect()
}

#[test]
fn everything_that_was_seen_is_on_the_screen_and_nothing_steers_the_terminal() {
    let text = drawn(&Screen::new(seen()));

    for part in ["mail", "~20000", "1m 15s", "2/4", "nobody", "17", "attempts", "q quit"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(!text.contains('\x1b'));
}

#[test]
fn what_changes_something_is_asked_for_first() {
    let mut screen = Screen::new(seen());

    screen.press(KeyCode::Down);
    assert_eq!(screen.press(KeyCode::Char('p')), Act::Nothing);
    assert!(drawn(&screen).contains("pause queue bulk? y/n"));
    assert_eq!(screen.press(KeyCode::Char('n')), Act::Nothing);
    screen.press(KeyCode::Char('p'));
    assert_eq!(
        screen.press(KeyCode::Char('y')),
        Act::Order(FleetVerb::PauseQueue, "bulk".into())
    );

    screen.press(KeyCode::Tab);
    screen.press(KeyCode::Char('d'));
    assert_eq!(screen.press(KeyCode::Char('y')), Act::Nothing, "there is no worker");
    screen.press(KeyCode::Tab);
    screen.press(KeyCode::Char('c'));
    assert_eq!(screen.press(KeyCode::Char('y')), Act::Cancel(17));
    screen.press(KeyCode::Tab);
    screen.press(KeyCode::Char('r'));
    assert_eq!(screen.press(KeyCode::Char('y')), Act::Restart(18));
    assert_eq!(screen.press(KeyCode::Char('q')), Act::Quit);
}

#[test]
fn the_selection_stays_within_what_is_there() {
    let mut screen = Screen::new(seen());
    for _ in 0..9 {
        screen.press(KeyCode::Down);
    }
    let mut fewer = seen();
    fewer.queues.truncate(1);
    screen.see(fewer);

    screen.press(KeyCode::Char('p'));
    assert_eq!(
        screen.press(KeyCode::Char('y')),
        Act::Order(FleetVerb::PauseQueue, "mail".into())
    );
}
