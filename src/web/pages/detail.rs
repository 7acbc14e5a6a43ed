//! The page of one queue, schedule or retry policy: facts, actions, a chart, tables.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use askama::Template;

use super::table::Section;
use crate::read;
use crate::web::actions::Action;
use crate::web::chart::{self, Line, chart};
use crate::web::site::{Frame, Lists};
use crate::web::text::Html;

#[derive(Template)]
#[template(path = "detail.html")]
pub struct Detail {
    pub frame: Frame,
    pub title: String,
    pub state: Html,
    pub facts: Vec<(&'static str, Html)>,
    pub actions: Vec<Action>,
    pub lists: Lists,
    pub chart: Html,
    pub chart_title: &'static str,
    pub list_title: &'static str,
    pub list: Vec<Html>,
    pub sections: Vec<Section>,
    /// Statements that show the same.
    pub sql: String,
}

/// A chart of the minutes of the last hour.
pub fn last_hour(buckets: &[read::Bucket], now: SystemTime, label: &str) -> Html {
    let minute = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 60;
    let last = minute(now);
    let mut done = [vec![Some(0.0); 60], vec![Some(0.0); 60]];
    for bucket in buckets {
        let place = bucket
            .at
            .and_then(|at| usize::try_from((minute(at) + 60).checked_sub(last + 1)?).ok());
        if let Some(place) = place.filter(|place| *place < 60) {
            done[0][place] = Some(bucket.completed as f64);
            done[1][place] = Some(bucket.failed as f64);
        }
    }
    let [completed, failed] = done;
    let line = |class, name, values, filled| Line {
        class,
        name,
        values,
        filled,
    };
    chart(
        &format!("{label}, last hour"),
        UNIX_EPOCH + Duration::from_secs((last - 59) * 60),
        Duration::from_secs(60),
        &[
            line("accent", "completed", completed, true),
            line("bad", "failed", failed, false),
        ],
        chart::count,
    )
}
