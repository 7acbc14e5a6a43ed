//! The claimer: claims jobs for free slots. Its connection also holds the worker's proof of life and its bells, and
//! listens for notifications.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};
use tokio_postgres::Notification;
use tokio_util::sync::CancellationToken;

use crate::db::calls::{self, Claimed, ClaimedRows, QueueRequest};
use crate::db::connect::{Notifications, Session};
use crate::error::Result;
use crate::execute::context::Stop;
use crate::job::HeldJob;
use crate::observe;
use crate::worker::Identity;
use crate::worker::background_scan::BackgroundScans;
use crate::worker::crew::Crew;
use crate::worker::lane::{Lane, Mode};
use crate::worker::orders::Orders;
use crate::worker::reconcile::{ClaimCounter, ClaimUnderWay};
use crate::worker::slots::{Share, Taken};

/// The channel on which the keeper learns of jobs that are due before its next heartbeat: see `bugle.expect`.
const KEEPER_CHANNEL: &str = "bugle_keeper";

/// How long the executor of a cancelled job may take to stop.
const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// A message from the keeper to the claimer.
pub enum Hint {
    /// These queues have work.
    HasWork(Vec<String>),
    /// The commands of its hosts were announced. `are_known`: no host is still starting.
    Announced { are_known: bool },
    /// Whether this worker is the keeper or its deputy, and must be notified of jobs that are due soon.
    ListenForDue(bool),
}

/// Why the claimer returned.
#[derive(Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It was asked to stop.
    ByShutdown,
    /// There are no more jobs to run, and it was configured to stop then.
    Empty,
    /// The connection is lost.
    Disconnected,
}

/// Claims for the crew until it is stopped. It outlives connections; [`Claimer::run`] takes one.
pub struct Claimer {
    lanes: Vec<Lane>,
    crew: Arc<Crew>,
    background_scans: BackgroundScans,
    hints: mpsc::UnboundedReceiver<Hint>,
    /// Notified when a job is due before the keeper's next heartbeat.
    keeper_called: Arc<Notify>,
    claims: Arc<ClaimCounter>,
    listens_for_due: bool,
    until_empty: bool,
    /// No host is still starting, which might announce commands.
    hosts_are_known: bool,
    /// A batch that was claimed while other jobs were started.
    ahead: Option<ClaimedBatch>,
    /// The lane that came first when there was not enough room for all.
    first_lane: usize,
    orders: Orders,
}

/// The reply to a claim, and the request.
struct ClaimedBatch {
    requests: Vec<QueueRequest>,
    rows: ClaimedRows,
    asked_at: Instant,
    answered_at: Instant,
    under_way: ClaimUnderWay,
    taken: Option<Taken>,
}

/// What to claim, and the slots for it if they are shared with other databases.
type Requests = (Vec<QueueRequest>, Option<Taken>);

impl ClaimedBatch {
    async fn claim(
        (requests, mut taken): Requests,
        session: &Session,
        me: Identity,
        under_way: ClaimUnderWay,
    ) -> Result<ClaimedBatch> {
        let asked_at = Instant::now();
        let claim = calls::claim(session, me, &requests);
        let rows = match &mut taken {
            None => claim.await?,
            Some(taken) => taken.until(claim).await?,
        };
        Ok(ClaimedBatch {
            requests,
            rows,
            asked_at,
            answered_at: Instant::now(),
            under_way,
            taken,
        })
    }
}

impl Claimer {
    pub fn new(
        queues: &[(String, u32)],
        crew: Arc<Crew>,
        background_scans: BackgroundScans,
        hints: mpsc::UnboundedReceiver<Hint>,
        keeper_called: Arc<Notify>,
        claims: Arc<ClaimCounter>,
        until_empty: bool,
    ) -> Self {
        let now = Instant::now();
        let crew_has_hosts = crew.has_hosts();
        let lanes = queues.iter().map(|(queue, slots)| Lane::new(queue, *slots, now));
        Claimer {
            lanes: lanes.collect(),
            crew,
            background_scans,
            hints,
            keeper_called,
            claims,
            listens_for_due: false,
            until_empty,
            hosts_are_known: !crew_has_hosts,
            ahead: None,
            first_lane: 0,
            orders: Orders::default(),
        }
    }

    /// Claim on this session until shutdown, or until it breaks.
    ///
    /// # Errors
    /// If the database rejects a call. A lost connection is not an error.
    pub async fn run(
        &mut self,
        session: &Session,
        me: Identity,
        notifications: &mut Notifications,
        shutdown: &CancellationToken,
    ) -> Result<Stopped> {
        let share = self.crew.share().cloned();
        let _serving = share.as_ref().map(Share::serving);
        let stopped = self.claim_until_stopped(session, me, notifications, shutdown).await;
        let handed_back = self.hand_back_ahead();
        stopped.and_then(|stopped| handed_back.map(|()| stopped))
    }

    async fn claim_until_stopped(
        &mut self,
        session: &Session,
        me: Identity,
        notifications: &mut Notifications,
        shutdown: &CancellationToken,
    ) -> Result<Stopped> {
        let share = self.crew.share().cloned();
        let share = share.as_ref();
        self.begin_session(session, me).await?;
        // the order may have been given before this session listened
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
                self.notified(&notification);
            }
            if patiently(share, self.follow_orders(session, me)).await? {
                shutdown.cancel();
                continue;
            }
            if patiently(share, self.poll(session, me)).await? {
                continue;
            }
            if self.until_empty && self.hosts_are_known && self.is_empty() {
                self.stand_down(session).await?;
                return Ok(Stopped::Empty);
            }
            if !self.until_empty && patiently(share, self.fall_asleep(session, me)).await? {
                continue;
            }
            self.start_background_scans(me);
            let next_event = self.next_event();
            tokio::select! {
                notification = notifications.recv() => match notification {
                    Some(notification) => self.notified(&notification),
                    None => return Ok(Stopped::Disconnected),
                },
                Some(hint) = self.hints.recv() => patiently(share, self.take_hint(session, hint)).await?,
                () = self.crew.freed() => {}
                () = sleep_until(next_event) => {}
                Some(scan) = self.background_scans.ended() => {
                    let lane = self.lane_mut(&scan.queue);
                    lane.background_scan_ended(scan.found, scan.took, Instant::now());
                }
                () = shutdown.cancelled() => {}
            }
        }
    }

    async fn begin_session(&mut self, session: &Session, me: Identity) -> Result<()> {
        let queues: Vec<String> = self.lanes.iter().map(|lane| lane.queue.clone()).collect();
        let (bells, own) = calls::channels(session, me, &queues).await?;
        for (lane, channel) in self.lanes.iter_mut().zip(bells) {
            lane.reset(channel, Instant::now());
        }
        calls::listen(session, &own).await?;
        if self.listens_for_due {
            self.listen_for_due(session).await?;
        }
        Ok(())
    }

    /// The next time at which there is something to do, even without an event.
    fn next_event(&self) -> Option<Instant> {
        let now = Instant::now();
        // without room there is nothing to poll for
        let has_room = self.crew.room() > 0 && self.limited_room(now) != Some(0);
        // a lane that is due and finds no slot is notified when there is one; the others must ask first
        let has_slots = self.crew.share().is_none_or(Share::has_room);
        let polls = self.lanes.iter().filter(|_| has_room).filter_map(Lane::next_poll);
        let polls = polls.filter(|at| has_slots || *at > now);
        let scans = self
            .lanes
            .iter()
            .filter_map(|lane| Some(lane.next_background_scan()?.0));
        let more_room = self.crew.observed.health.throttle.changes_at(now);
        polls
            .chain(scans)
            .chain(more_room)
            .chain(self.orders.next_check())
            .min()
    }

    /// Announcements before this session listened were missed, so the keeper checks once more afterwards.
    async fn listen_for_due(&self, session: &Session) -> Result<()> {
        calls::listen(session, KEEPER_CHANNEL).await?;
        self.keeper_called.notify_one();
        Ok(())
    }

    async fn take_hint(&mut self, session: &Session, hint: Hint) -> Result<()> {
        match hint {
            Hint::HasWork(queues) => {
                for lane in self.lanes.iter_mut().filter(|lane| queues.contains(&lane.queue)) {
                    lane.wake_by_poll(Instant::now());
                }
                Ok(())
            }
            Hint::Announced { are_known } => {
                self.hosts_are_known |= are_known;
                self.lanes.iter_mut().for_each(|lane| lane.wake(Instant::now()));
                Ok(())
            }
            Hint::ListenForDue(true) => {
                self.listens_for_due = true;
                self.listen_for_due(session).await
            }
            Hint::ListenForDue(false) => {
                self.listens_for_due = false;
                calls::unlisten(session, KEEPER_CHANNEL).await
            }
        }
    }

    async fn stand_down(&mut self, session: &Session) -> Result<()> {
        let queues: Vec<String> = self.lanes.iter().map(|lane| lane.queue.clone()).collect();
        let modes: Vec<&str> = self.lanes.iter().map(|lane| lane.mode().as_str()).collect();
        calls::stand_down(session, &queues, &modes).await
    }

    /// Claim for every lane that is due, and start the claimed jobs. False if no lane is due.
    ///
    /// While jobs are started, the next claim is in flight if there is room for more. Otherwise the database and the
    /// worker would wait for each other in turn.
    async fn poll(&mut self, session: &Session, me: Identity) -> Result<bool> {
        let mut batch = match self.ahead.take() {
            Some(batch) => batch,
            None => match self.requests() {
                None => return Ok(false),
                Some(requests) => ClaimedBatch::claim(requests, session, me, self.claims.ask()).await?,
            },
        };
        self.note(&mut batch)?;
        let Some(requests) = self.requests() else {
            self.start(session, me, batch).await?;
            return Ok(true);
        };
        let next = ClaimedBatch::claim(requests, session, me, self.claims.ask());
        let started = async {
            // send the request first
            tokio::task::yield_now().await;
            self.start(session, me, batch).await
        };
        let (next, started) = tokio::join!(next, started);
        self.ahead = Some(next?);
        if started.is_err() {
            self.hand_back_ahead()?;
        }
        started.map(|()| true)
    }

    fn requests(&mut self) -> Option<Requests> {
        let now = Instant::now();
        if self.crew.room() == 0 {
            return None;
        }
        let mut taken = None;
        let requests: Vec<_> = match (self.crew.share(), self.limited_room(now)) {
            (None, None) => self.lanes.iter_mut().filter_map(|lane| lane.request(now)).collect(),
            (None, Some(room)) => self.limited_requests(room, now),
            (Some(share), limit) => {
                let due: usize = self.lanes.iter().map(|lane| lane.due(now)).sum();
                let due = due.min(limit.unwrap_or(usize::MAX));
                if due == 0 {
                    share.wants(false);
                    return None;
                }
                let mut slots = share.take(due);
                let requests = self.limited_requests(slots.count(), now);
                slots.keep(requests.iter().map(|request| request.slots as usize).sum());
                taken = Some(slots);
                requests
            }
        };
        (!requests.is_empty()).then_some((requests, taken))
    }

    /// How many more jobs may run while the worker is short of a resource; `None` if it is not.
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

    /// Divide the room among the lanes, starting with a different lane each time.
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

    /// Report to the lanes what was claimed for them.
    fn note(&mut self, batch: &mut ClaimedBatch) -> Result<()> {
        let took = batch.answered_at - batch.asked_at;
        observe::time(&self.crew.observed.tallies.claims, took);
        let mut count = 0;
        for request in &batch.requests {
            let share = batch.rows.of(&request.queue)?;
            count += share.count;
            let lane = self.lane_mut(&request.queue);
            lane.claimed(request, share, batch.asked_at, batch.answered_at);
            lane.running().fetch_add(share.count, Ordering::AcqRel);
        }
        if let Some(taken) = batch.taken.take() {
            taken.used(count);
        }
        Ok(())
    }

    /// Hand the jobs to the crew, in order.
    async fn start(&mut self, session: &Session, me: Identity, batch: ClaimedBatch) -> Result<()> {
        let claimed = self.take(batch)?;
        let mut claimed = self.fetch_payloads(session, me, claimed).await?;
        // others use these slots: see `Taken::until`
        let excess = self.crew.share().map_or(0, Share::excess).min(claimed.len());
        self.hand_back(claimed.split_off(claimed.len() - excess));
        let burst = self.crew.burst();
        for claimed in claimed {
            let running = self.lane_mut(claimed.queue()).running().clone();
            match claimed.job {
                Ok(job) => self.crew.start(job, running, burst.clone()),
                Err(undecodable) => self.crew.refuse(undecodable, &running),
            }
        }
        Ok(())
    }

    /// From here on the crew is responsible for these jobs, whatever fails.
    fn take(&self, batch: ClaimedBatch) -> Result<Vec<Claimed>> {
        let claimed = batch.rows.read()?;
        self.crew.take(claimed.iter().map(Claimed::held));
        drop(batch.under_way);
        Ok(claimed)
    }

    /// Large payloads are not part of the reply to a claim.
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
                // lost between claim and fetch
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

    /// Give back jobs that were claimed ahead and will not be started.
    fn hand_back_ahead(&mut self) -> Result<()> {
        if let Some(mut batch) = self.ahead.take() {
            self.note(&mut batch)?;
            let claimed = self.take(batch)?;
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

    /// A request for every lane that is due.
    fn start_background_scans(&mut self, me: Identity) {
        let now = Instant::now();
        for lane in &mut self.lanes {
            if let Some((due, most)) = lane.next_background_scan()
                && due <= now
            {
                self.background_scans.start(me, &lane.queue, most);
                lane.background_scan_started();
            }
        }
    }

    /// Try to take the bells of lanes that found nothing. False if no lane wants to sleep.
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
        // listen first: a notification that is sent before that is lost
        for lane in self.lanes.iter_mut().filter(|lane| queues.contains(&lane.queue)) {
            if !lane.bell.is_heard {
                calls::listen(session, &lane.bell.channel).await?;
                lane.bell.is_heard = true;
            }
        }
        for lane in self.lanes.iter_mut().filter(|lane| queues.contains(&lane.queue)) {
            let found = lane.take_unannounced();
            if found > 0 {
                let found = i64::try_from(found).unwrap_or(i64::MAX);
                self.crew.observed.tallies.bell(&lane.queue, 0, found);
            }
        }
        for answer in calls::arm(session, me, &queues, &cursors).await? {
            let now = Instant::now();
            let lane = self.lane_mut(&answer.queue);
            lane.armed(&answer.mode, answer.has_work, now);
            tracing::trace!(event = "arm", queue = lane.queue, mode = answer.mode, answer.has_work);
            // if followers listened to the bell, all of them would wake up for one job
            if lane.mode() == Mode::Follower {
                lane.bell.is_heard = false;
                calls::unlisten(session, &lane.bell.channel.clone()).await?;
            }
        }
        Ok(true)
    }

    /// A notification is only a hint, because any login of the database can send one. A poll determines whether there
    /// is work; orders of an operator are looked up before they are followed.
    fn notified(&mut self, notification: &Notification) {
        let now = Instant::now();
        let (channel, message) = (notification.channel(), notification.payload());
        let mut lanes = self.lanes.iter_mut();
        if channel == KEEPER_CHANNEL {
            self.keeper_called.notify_one();
        } else if let Some(lane) = lanes.find(|lane| lane.bell.channel == channel) {
            lane.wake(now);
            self.crew.observed.tallies.bell(&lane.queue, 1, 0);
        } else if let Some(job) = message.strip_prefix("cancel ") {
            if let Some(held) = parse_held(job).filter(|held| self.crew.is_running(*held)) {
                self.orders.cancel(held);
            }
        } else if message == "drain" {
            self.orders.drain();
        } else if message == "resume" || message == "pause" {
            self.lanes.iter_mut().for_each(|lane| lane.wake(now));
        } else if let Some(queue) = message.strip_prefix("scan ")
            && let Some(lane) = self.lanes.iter_mut().find(|lane| lane.queue == queue)
        {
            lane.wake(now);
        }
    }

    /// Look up the orders and stop the executors of cancelled jobs, which are already in history. True if this worker
    /// is to drain.
    async fn follow_orders(&mut self, session: &Session, me: Identity) -> Result<bool> {
        let Some((jobs, drain)) = self.orders.take(Instant::now()) else {
            return Ok(false);
        };
        let cancelled = match jobs.is_empty() {
            true => Vec::new(),
            false => calls::not_held(session, me, &jobs).await?,
        };
        for verdict in &cancelled {
            self.crew.fence(verdict.held(), Stop::Cancelled, CANCEL_GRACE);
        }
        let drain = drain && calls::should_drain(session, me).await?;
        self.orders.checked(drain || !cancelled.is_empty(), Instant::now());
        Ok(drain)
    }

    fn is_empty(&self) -> bool {
        self.lanes.iter().all(Lane::is_exhausted) && self.crew.is_idle()
    }

    fn lane_mut(&mut self, queue: &str) -> &mut Lane {
        self.lanes
            .iter_mut()
            .find(|lane| lane.queue == queue)
            .expect("the job is from a requested queue")
    }
}

/// Do not keep slots from other databases while this one does not answer.
async fn patiently<T>(share: Option<&Share>, calls: impl Future<Output = T>) -> T {
    match share {
        None => calls.await,
        Some(share) => share.patiently(calls).await,
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
