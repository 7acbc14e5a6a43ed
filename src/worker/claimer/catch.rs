//! A claim that was answered.

use std::time::Instant;

use crate::db::calls::{self, Answer, QueueRequest};
use crate::db::connect::Session;
use crate::error::Result;
use crate::worker::Identity;
use crate::worker::reconcile::UnderWay;

/// What was claimed, for which requests.
pub struct Catch {
    pub requests: Vec<QueueRequest>,
    pub answer: Answer,
    pub asked_at: Instant,
    pub answered_at: Instant,
    pub under_way: UnderWay,
}

impl Catch {
    pub async fn of(
        requests: Vec<QueueRequest>,
        session: &Session,
        me: Identity,
        under_way: UnderWay,
    ) -> Result<Catch> {
        let asked_at = Instant::now();
        let answer = calls::claim(session, me, &requests).await?;
        Ok(Catch {
            requests,
            answer,
            asked_at,
            answered_at: Instant::now(),
            under_way,
        })
    }
}
