//! The claimer: takes jobs for free slots, on the one connection that proves the worker's life, listens and holds
//! bells.

mod catch;
mod orders;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};
use tokio_postgres::Notification;
use tokio_util::sync::CancellationToken;

use crate::db::calls::{self, Claimed, QueueRequest};
use crate::db::connect::{Notifications, Session};
use crate::error::Result;
use crate::job::HeldJob;
use crate::observe;
use crate::worker::Identity;
use crate::worker::background_scan::BackgroundScans;
use crate::worker::crew::Crew;
use crate::worker::lane::{Lane, Mode};
use crate::worker::reconcile::Claims;
pub use catch::Catch;
pub use orders::Orders;

/// Where the keeper hears of jobs that are due before it looks again: see `bugle.expect`.
const KEEPER_CHANNEL: &str = "bugle_keeper";

/// How long an executor whose job was cancelled may take to stop by itself.
const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// Things said to the claimer from within the worker.
pub enum Hint {
    /// These queues have work.
    Look(Vec<String>),
    /// This worker became the keeper or its deputy, and must hear what is due soon; or it ceased to be.
    HearDue(bool),
}

/// Why the claimer returned.
#[derive(Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It was asked to.
    ByShutdown,
    /// Nothing is left to run now, and it was told to stop then.
    Empty,
    /// The connection is gone.
    Disconnected,
}

/// Claims for the crew until it is stopped. Lives longer than a connection; [`Claimer::run`] takes one.
pub struct Claimer {
    pub lanes: Vec<Lane>,
    pub crew: Arc<Crew>,
    pub hints: mpsc::UnboundedReceiver<Hint>,
    /// The keeper's chores are due: somebody is expected before the keeper would look.
    pub keeper_called: Arc<Notify>,
    /// Counted, so that whoever looks for forgotten jobs knows what may still come.
    pub claims: Arc<Claims>,
    pub background_scans: BackgroundScans,
    pub hears_due: bool,
    pub until_empty: bool,
    /// What was claimed while others were started.
    pub ahead: Option<Catch>,
    /// The lane that was asked first when there was too little room for all.
    pub first_lane: usize,
    pub orders: Orders,
}

impl Claimer {
    /// Claim on this session until shutdown, or until it breaks.
    ///
    /// # Errors
    /// What the database refused. A lost connection is not an error.
    pub async fn run(
        &mut self,
        session: &Session,
        me: Identity,
        notifications: &mut Notifications,
        shutdown: &CancellationToken,
    ) -> Result<Stopped> {
        self.take_up_posts(session, me).await?;
        // told before it listened
        if calls::should_drain(session, me).await? {
            shutdown.cancel();
        }
        loop {
            if shutdown.is_cancelled() {
                self.hand_back_ahead()?;
                self.stand_down(session).await?;
                return Ok(Stopped::ByShutdown);
            }
            while let Ok(notification) = notifications.try_recv() {
                self.heard(&notification);
            }
            if self.obey(session, me).await? {
                shutdown.cancel();
                continue;
            }
            if self.look(session, me).await? {
                continue;
            }
            if self.until_empty && self.is_empty() {
                self.stand_down(session).await?;
                return Ok(Stopped::Empty);
            }
            if !self.until_empty && self.fall_asleep(session, me).await? {
                continue;
            }
            let next_background = self.start_background_scans(me);
            // without room there is nothing to look for until some is made
            let now = Instant::now();
            let has_room = self.crew.room() > 0 && self.limited_room(now) != Some(0);
            let next_room = self.crew.observed.health.throttle.changes_at(now);
            let next_look = self.lanes.iter().filter(|_| has_room).filter_map(Lane::next_poll).min();
            tokio::select! {
                notification = notifications.recv() => match notification {
                    Some(notification) => self.heard(&notification),
                    None => return Ok(Stopped::Disconnected),
                },
                Some(hint) = self.hints.recv() => self.take_hint(session, hint).await?,
                () = self.crew.freed() => {}
                () = sleep_until(next_look) => {}
                () = sleep_until(next_room) => {}
                () = sleep_until(next_background) => {}
                () = sleep_until(self.orders.next_check()) => {}
                Some(report) = self.background_scans.ended() => {
                    let lane = self.lane_mut(&report.queue);
                    lane.background_scan_ended(report.found, report.took, Instant::now());
                }
                () = shutdown.cancelled() => {}
            }
        }
    }

    async fn take_up_posts(&mut self, session: &Session, me: Identity) -> Result<()> {
        let queues: Vec<String> = self.lanes.iter().map(|lane| lane.queue.clone()).collect();
        let (bells, own) = calls::channels(session, me, &queues).await?;
        for (lane, channel) in self.lanes.iter_mut().zip(bells) {
            lane.reset(channel, Instant::now());
        }
        calls::listen(session, &own).await?;
        if self.hears_due {
            self.listen_for_due(session).await?;
        }
        Ok(())
    }

    /// What was announced before anybody listened was not heard: the keeper looks once more afterwards.
    async fn listen_for_due(&self, session: &Session) -> Result<()> {
        calls::listen(session, KEEPER_CHANNEL).await?;
        self.keeper_called.notify_one();
        Ok(())
    }

    async fn take_hint(&mut self, session: &Session, hint: Hint) -> Result<()> {
        match hint {
            Hint::Look(queues) => {
                for lane in self.lanes.iter_mut().filter(|lane| queues.contains(&lane.queue)) {
                    lane.wake(Instant::now());
                }
                Ok(())
            }
            Hint::HearDue(true) => {
                self.hears_due = true;
                self.listen_for_due(session).await
            }
            Hint::HearDue(false) => {
                self.hears_due = false;
                calls::unlisten(session, KEEPER_CHANNEL).await
            }
        }
    }

    async fn stand_down(&mut self, session: &Session) -> Result<()> {
        let queues: Vec<String> = self.lanes.iter().map(|lane| lane.queue.clone()).collect();
        let modes: Vec<&str> = self.lanes.iter().map(|lane| lane.mode().as_str()).collect();
        calls::stand_down(session, &queues, &modes).await
    }

    /// Claim for every lane whose time it is, and start what came. False if there was none.
    ///
    /// While jobs are started the next claim is under way, if there is room for more: else the database would wait for
    /// us, and then we for it.
    async fn look(&mut self, session: &Session, me: Identity) -> Result<bool> {
        let catch = match self.ahead.take() {
            Some(catch) => catch,
            None => match self.requests() {
                None => return Ok(false),
                Some(requests) => Catch::of(requests, session, me, self.claims.ask()).await?,
            },
        };
        self.note(&catch)?;
        let Some(requests) = self.requests() else {
            self.start(session, me, catch).await?;
            return Ok(true);
        };
        let next = Catch::of(requests, session, me, self.claims.ask());
        let started = async {
            // the request leaves first
            tokio::task::yield_now().await;
            self.start(session, me, catch).await
        };
        let (next, started) = tokio::join!(next, started);
        self.ahead = Some(next?);
        if started.is_err() {
            self.hand_back_ahead()?;
        }
        started.map(|()| true)
    }

    fn requests(&mut self) -> Option<Vec<QueueRequest>> {
        let now = Instant::now();
        let requests: Vec<_> = match self.limited_room(now) {
            _ if self.crew.room() == 0 => Vec::new(),
            None => self.lanes.iter_mut().filter_map(|lane| lane.request(now)).collect(),
            Some(room) => self.limited_requests(room, now),
        };
        (!requests.is_empty()).then_some(requests)
    }

    /// How many more jobs may run while the worker is short of something. Nothing if it is not.
    fn limited_room(&self, now: Instant) -> Option<usize> {
        let slots = self.lanes.iter().map(Lane::slots).sum();
        let most = self.crew.observed.health.throttle.most(slots, now)?;
        let running: usize = self
            .lanes
            .iter()
            .map(|lane| lane.running().load(Ordering::Acquire))
            .sum();
        Some(most.saturating_sub(running))
    }

    /// What is left is shared among the lanes, the first of them another one each time.
    fn limited_requests(&mut self, mut room: usize, now: Instant) -> Vec<QueueRequest> {
        self.first_lane = (self.first_lane + 1) % self.lanes.len();
        let (before, after) = self.lanes.split_at_mut(self.first_lane);
        let mut requests = Vec::new();
        let mut lanes_left = before.len() + after.len();
        for lane in after.iter_mut().chain(before) {
            let share = room.div_ceil(lanes_left);
            lanes_left -= 1;
            if share > 0
                && let Some(mut request) = lane.request(now)
            {
                request.slots = request.slots.min(i32::try_from(share).unwrap_or(i32::MAX));
                room -= request.slots as usize;
                requests.push(request);
            }
        }
        requests
    }

    /// Tell the lanes what was claimed for them.
    fn note(&mut self, catch: &Catch) -> Result<()> {
        let took = catch.answered_at - catch.asked_at;
        observe::time(&self.crew.observed.tallies.claims, took);
        for request in &catch.requests {
            let share = catch.answer.of(&request.queue)?;
            let lane = self.lane_mut(&request.queue);
            lane.claimed(request, share, catch.asked_at, catch.answered_at);
            lane.running().fetch_add(share.count, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Hand the jobs to the crew, in order.
    async fn start(&mut self, session: &Session, me: Identity, catch: Catch) -> Result<()> {
        let claimed = self.take(catch)?;
        for claimed in self.fetch_payloads(session, me, claimed).await? {
            let running = self.lane_mut(claimed.queue()).running().clone();
            match claimed.job {
                Ok(job) => self.crew.start(job, running),
                Err(undecodable) => self.crew.refuse(undecodable, &running),
            }
        }
        Ok(())
    }

    /// From here on they are ours to account for, whatever fails.
    fn take(&self, catch: Catch) -> Result<Vec<Claimed>> {
        let claimed = catch.answer.read()?;
        self.crew.take(claimed.iter().map(Claimed::held));
        drop(catch.under_way);
        Ok(claimed)
    }

    /// Large payloads do not come with the claim.
    async fn fetch_payloads(&mut self, session: &Session, me: Identity, claimed: Vec<Claimed>) -> Result<Vec<Claimed>> {
        let lacking: Vec<i64> = claimed
            .iter()
            .filter(|c| c.lacks_payload)
            .map(|c| c.held().id)
            .collect();
        if lacking.is_empty() {
            return Ok(claimed);
        }
        let mut payloads: HashMap<_, _> = match calls::payloads(session, me, &lacking).await {
            Ok(payloads) => payloads.into_iter().collect(),
            Err(error) => {
                self.hand_back(claimed);
                return Err(error);
            }
        };
        let (mut complete, mut fenced) = (Vec::with_capacity(claimed.len()), Vec::new());
        for mut claimed in claimed {
            match payloads.remove(&claimed.held()) {
                Some(payload) => claimed.add_payload(payload),
                // between claim and fetch
                None if claimed.lacks_payload => {
                    fenced.push(claimed);
                    continue;
                }
                None => {}
            }
            complete.push(claimed);
        }
        self.hand_back(fenced);
        Ok(complete)
    }

    /// What was claimed and will not be started.
    fn hand_back_ahead(&mut self) -> Result<()> {
        if let Some(catch) = self.ahead.take() {
            self.note(&catch)?;
            let claimed = self.take(catch)?;
            self.hand_back(claimed);
        }
        Ok(())
    }

    fn hand_back(&mut self, claimed: Vec<Claimed>) {
        for claimed in claimed {
            let running = self.lane_mut(claimed.queue()).running().clone();
            self.crew.hand_back(claimed.held(), &running);
        }
    }

    /// For every lane whose time it is. Returns when the next is due.
    fn start_background_scans(&mut self, me: Identity) -> Option<Instant> {
        let now = Instant::now();
        let mut next = None;
        for lane in &mut self.lanes {
            match lane.next_background_scan() {
                Some((due, most)) if due <= now => {
                    self.background_scans.start(me, &lane.queue, most);
                    lane.background_scan_started();
                }
                Some((due, _)) => next = Some(next.map_or(due, |next: Instant| next.min(due))),
                None => {}
            }
        }
        next
    }

    /// Ask for the bells of lanes that found nothing. False if no lane wants to sleep.
    async fn fall_asleep(&mut self, session: &Session, me: Identity) -> Result<bool> {
        let (queues, cursors): (Vec<String>, Vec<_>) = self
            .lanes
            .iter()
            .filter(|lane| lane.wants_to_sleep())
            .map(|lane| (lane.queue.clone(), lane.cursor_for_sleep()))
            .unzip();
        if queues.is_empty() {
            return Ok(false);
        }
        // Listen first: a bell rung before anyone listens is not heard.
        for lane in self.lanes.iter_mut().filter(|lane| queues.contains(&lane.queue)) {
            if !lane.bell.is_heard {
                calls::listen(session, &lane.bell.channel).await?;
                lane.bell.is_heard = true;
            }
        }
        for answer in calls::arm(session, me, &queues, &cursors).await? {
            let now = Instant::now();
            let lane = self.lane_mut(&answer.queue);
            lane.armed(&answer.mode, answer.has_work, now);
            tracing::trace!(event = "arm", queue = lane.queue, mode = answer.mode, answer.has_work);
            // a follower that listened to the bell would start with all the others for one job
            if lane.mode() == Mode::Follower {
                lane.bell.is_heard = false;
                calls::unlisten(session, &lane.bell.channel.clone()).await?;
            }
        }
        Ok(true)
    }

    /// A notification is a hint: any login of the database can send one. Looking for work finds out whether there is
    /// any; what an operator ordered is looked up before it is done.
    fn heard(&mut self, notification: &Notification) {
        let now = Instant::now();
        let message = notification.payload();
        if notification.channel() == KEEPER_CHANNEL {
            self.keeper_called.notify_one();
        } else if let Some(lane) = self
            .lanes
            .iter_mut()
            .find(|lane| lane.bell.channel == notification.channel())
        {
            lane.wake(now);
        } else if let Some(job) = message.strip_prefix("cancel ") {
            if let Some(held) = parse_held(job).filter(|held| self.crew.is_running(*held)) {
                self.orders.cancel(held);
            }
        } else if message == "drain" {
            self.orders.drain();
        } else if message == "resume" || message == "pause" {
            self.lanes.iter_mut().for_each(|lane| lane.wake(now));
        } else if let Some(queue) = message.strip_prefix("look ")
            && let Some(lane) = self.lanes.iter_mut().find(|lane| lane.queue == queue)
        {
            lane.wake(now);
        }
    }

    /// Look up what was heard, and stop what was cancelled: it is in history already, only its executor is left. True
    /// if this worker is to drain.
    async fn obey(&mut self, session: &Session, me: Identity) -> Result<bool> {
        let Some((jobs, drain)) = self.orders.take(Instant::now()) else {
            return Ok(false);
        };
        let cancelled = match jobs.is_empty() {
            true => Vec::new(),
            false => calls::not_held(session, me, &jobs).await?,
        };
        for verdict in &cancelled {
            self.crew.fence(verdict.held(), CANCEL_GRACE);
        }
        let should_drain = drain && calls::should_drain(session, me).await?;
        self.orders
            .checked(should_drain || !cancelled.is_empty(), Instant::now());
        Ok(should_drain)
    }

    fn is_empty(&self) -> bool {
        self.lanes.iter().all(Lane::is_exhausted) && self.crew.is_idle()
    }

    fn lane_mut(&mut self, queue: &str) -> &mut Lane {
        self.lanes
            .iter_mut()
            .find(|lane| lane.queue == queue)
            .expect("claimed from a queue that was asked for")
    }
}

fn parse_held(text: &str) -> Option<HeldJob> {
    let (id, claim) = text.split_once(' ')?;
    Some(HeldJob {
        id: id.parse().ok()?,
        claim: claim.parse().ok()?,
    })
}

async fn sleep_until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when.into()).await,
        None => std::future::pending().await,
    }
}
