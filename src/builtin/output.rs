//! The output of a program, read without buffering more than is kept.

use tokio::io::{AsyncRead, AsyncReadExt};

use super::{MOST_RESULT, readable};

/// How much of the end of stderr is kept; the cause is usually there.
const TAIL: usize = 4 * 1024;

/// Stdout exceeded the maximum size of a result.
#[derive(Debug)]
pub struct TooLarge;

/// Read all of stdout, up to the maximum size of a result.
pub async fn read_result(mut from: impl AsyncRead + Unpin, to: &mut Vec<u8>) -> Result<(), TooLarge> {
    let mut chunk = vec![0; 16 * 1024];
    loop {
        match from.read(&mut chunk).await {
            Ok(0) | Err(_) => return Ok(()),
            Ok(size) if to.len() + size > MOST_RESULT => return Err(TooLarge),
            Ok(size) => to.extend_from_slice(&chunk[..size]),
        }
    }
}

/// Read all of stderr and keep its end.
pub async fn read_tail(mut from: impl AsyncRead + Unpin, tail: &mut Tail) {
    let mut chunk = vec![0; 16 * 1024];
    while let Ok(size @ 1..) = from.read(&mut chunk).await {
        tail.push(&chunk[..size]);
    }
}

/// The longest piece of a line that is passed on.
const LONGEST_LINE: usize = 8 * 1024;

/// Read all lines, and pass each on as text. Of a long line, only the first part is.
pub async fn each_line(mut from: impl AsyncRead + Unpin, mut told: impl FnMut(&str)) {
    let mut chunk = vec![0; 16 * 1024];
    let mut line = Vec::new();
    while let Ok(size @ 1..) = from.read(&mut chunk).await {
        let mut rest = &chunk[..size];
        while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
            add(&mut line, &rest[..at]);
            told(&as_text(&line));
            line.clear();
            rest = &rest[at + 1..];
        }
        add(&mut line, rest);
    }
    if !line.is_empty() {
        told(&as_text(&line));
    }
}

/// As [`readable`], with the indentation.
fn as_text(line: &[u8]) -> String {
    String::from_utf8_lossy(line).replace('\0', "").trim_end().to_owned()
}

fn add(line: &mut Vec<u8>, bytes: &[u8]) {
    let room = LONGEST_LINE.saturating_sub(line.len());
    line.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

/// Keeps the last bytes of everything that was pushed.
#[derive(Default)]
pub struct Tail {
    kept: Vec<u8>,
    cut: bool,
}

impl Tail {
    /// Add a line.
    pub fn push_line(&mut self, line: &str) {
        self.push(line.as_bytes());
        self.push(b"\n");
    }

    fn push(&mut self, bytes: &[u8]) {
        self.kept.extend_from_slice(bytes);
        if let Some(excess @ 1..) = self.kept.len().checked_sub(TAIL) {
            self.kept.drain(..excess);
            self.cut = true;
        }
    }

    /// The bytes as text, on separate lines below `message`.
    pub fn below(&self, message: String) -> String {
        let text = self.text();
        match (text.is_empty(), self.cut) {
            (true, _) => message,
            (false, true) => format!("{message}\n…{text}"),
            (false, false) => format!("{message}\n{text}"),
        }
    }

    fn text(&self) -> String {
        // do not start in the middle of a character
        let begin = match self.cut {
            true => self
                .kept
                .iter()
                .take(4)
                .take_while(|byte| **byte & 0xc0 == 0x80)
                .count(),
            false => 0,
        };
        readable(&self.kept[begin..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_kept_in_whole_characters() {
        let mut tail = Tail::default();
        for _ in 0..2000 {
            tail.push("€€€".as_bytes());
        }

        let text = tail.text();

        assert!(text.len() <= TAIL && text.len() > TAIL - 4);
        assert!(text.chars().all(|c| c == '€'), "{text}");
    }

    #[test]
    fn what_is_no_text_becomes_text() {
        let mut tail = Tail::default();
        tail.push(b"a\0b\xff\xfe c\n");

        assert_eq!(tail.below("oops".into()), "oops\nab\u{fffd}\u{fffd} c");
    }

    #[tokio::test]
    async fn a_result_may_be_as_large_as_the_limit_and_no_larger() {
        let mut kept = Vec::new();
        read_result(&vec![b' '; MOST_RESULT][..], &mut kept).await.unwrap();
        assert_eq!(kept.len(), MOST_RESULT);

        let flood = tokio::io::repeat(b'x');
        let mut kept = Vec::new();
        read_result(flood, &mut kept).await.unwrap_err();
        assert!(kept.capacity() <= 2 * MOST_RESULT);
    }
}
