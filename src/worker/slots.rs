//! Slots that the workers of several databases in one process share, fairly.
//!
//! A database that has work and fewer slots than its share comes before the others. Slots that no other one needs can
//! be used by any of them, except one for each: a database whose worker sleeps must be able to start a job at once, as
//! its worker holds the bell.
//!
//! A database that is not served, or does not answer, has work that nobody can claim: nothing but that one slot is left
//! to it until it answers.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

/// A database whose reply takes longer than this does not keep slots from the others.
const LONGEST_REPLY: Duration = Duration::from_secs(2);

/// All slots of the process.
#[derive(Debug)]
pub struct Slots {
    total: usize,
    members: Mutex<Vec<Member>>,
}

#[derive(Debug)]
struct Member {
    /// How many it could use at most: those of its queues.
    most: usize,
    /// Slots with a job, or with a claim under way.
    taken: usize,
    /// Whether it would have used more slots.
    wants: bool,
    freed: Arc<Notify>,
}

impl Slots {
    /// For databases whose queues have this many slots each.
    pub fn new(total: usize, most: &[usize]) -> Arc<Slots> {
        let members = most.iter().map(|most| Member {
            most: *most,
            taken: 0,
            wants: false,
            freed: Arc::default(),
        });
        Arc::new(Slots {
            total,
            members: Mutex::new(members.collect()),
        })
    }

    /// The share of the database at this place.
    pub fn share(self: &Arc<Self>, place: usize) -> Share {
        let freed = self.members.lock().unwrap()[place].freed.clone();
        Share {
            slots: self.clone(),
            place,
            freed,
        }
    }

    /// How many more slots the member at `place` may take.
    fn room(&self, members: &[Member], place: usize) -> usize {
        let me = &members[place];
        let free = self
            .total
            .saturating_sub(members.iter().map(|member| member.taken).sum());
        let active = members.iter().enumerate();
        let active = active
            .filter(|(at, member)| *at == place || member.taken > 0 || member.wants)
            .count();
        let fair = (self.total / active).max(1);
        let others = || {
            members
                .iter()
                .enumerate()
                .filter(|(at, _)| *at != place)
                .map(|(_, member)| member)
        };
        let asleep = others().filter(|member| member.taken == 0).count();
        let owed: usize = others()
            .map(|member| match member.wants {
                true => fair
                    .min(member.most)
                    .saturating_sub(member.taken)
                    .max(usize::from(member.taken == 0)),
                false => usize::from(member.taken == 0),
            })
            .sum();
        let up_to_fair = fair.saturating_sub(me.taken).min(free.saturating_sub(asleep));
        let first = usize::from(me.taken == 0).min(free);
        free.saturating_sub(owed).max(up_to_fair).max(first)
    }
}

/// What one database may use of the slots of its process.
#[derive(Debug, Clone)]
pub struct Share {
    slots: Arc<Slots>,
    place: usize,
    freed: Arc<Notify>,
}

impl Share {
    /// Take up to this many slots.
    pub fn take(&self, most: usize) -> Taken {
        let mut members = self.slots.members.lock().unwrap();
        let count = self.slots.room(&members, self.place).min(most);
        let me = &mut members[self.place];
        me.wants = count < most;
        me.taken += count;
        Taken {
            share: self.clone(),
            count,
            lent: 0,
        }
    }

    /// Its database is served until this is dropped.
    pub fn serving(&self) -> Serving {
        Serving(self.clone())
    }

    /// The result of calls to its database. While they take long, it leaves its share to the others.
    pub async fn patiently<T>(&self, calls: impl Future<Output = T>) -> T {
        let mut calls = pin!(calls);
        match tokio::time::timeout(LONGEST_REPLY, &mut calls).await {
            Ok(result) => result,
            Err(_) => {
                self.wants(false);
                calls.await
            }
        }
    }

    /// How many jobs were claimed for slots that others use by now.
    pub fn excess(&self) -> usize {
        let members = self.slots.members.lock().unwrap();
        let taken: usize = members.iter().map(|member| member.taken).sum();
        taken.saturating_sub(self.slots.total)
    }

    /// Whether it may take any.
    pub fn has_room(&self) -> bool {
        let members = self.slots.members.lock().unwrap();
        self.slots.room(&members, self.place) > 0
    }

    /// Whether it has work, and other databases have taken the slots for it.
    pub fn lacks_room(&self) -> bool {
        let members = self.slots.members.lock().unwrap();
        let me = &members[self.place];
        me.wants && me.taken < me.most && self.slots.room(&members, self.place) == 0
    }

    /// Whether it has work for more slots. If not, others need not leave any to it.
    pub fn wants(&self, wants: bool) {
        let mut members = self.slots.members.lock().unwrap();
        if std::mem::replace(&mut members[self.place].wants, wants) && !wants {
            self.tell_others(&members);
        }
    }

    /// Slots are free again.
    pub fn put_back(&self, count: usize) {
        if count > 0 {
            let mut members = self.slots.members.lock().unwrap();
            let me = &mut members[self.place];
            me.taken = me.taken.saturating_sub(count);
            self.tell_others(&members);
        }
    }

    fn tell_others(&self, members: &[Member]) {
        for (place, member) in members.iter().enumerate() {
            if place != self.place && member.wants {
                member.freed.notify_one();
            }
        }
    }

    /// Wait until there may be more room than before.
    pub async fn freed(&self) {
        self.freed.notified().await;
    }
}

/// When it is dropped, its database has no work that could be claimed.
#[derive(Debug)]
pub struct Serving(Share);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.wants(false);
    }
}

/// Slots that were taken for a claim. They are put back when this is dropped, except for those that were used.
#[derive(Debug)]
pub struct Taken {
    share: Share,
    count: usize,
    /// Left to others, because the reply takes long.
    lent: usize,
}

impl Taken {
    /// The reply to the claim. If it takes long, others may use the slots until it comes. Then there may be an
    /// [`excess`](Share::excess) of claimed jobs.
    pub async fn until<T>(&mut self, reply: impl Future<Output = T>) -> T {
        let mut reply = pin!(reply);
        if let Ok(reply) = tokio::time::timeout(LONGEST_REPLY, &mut reply).await {
            return reply;
        }
        self.share.wants(false);
        self.share.put_back(self.count);
        (self.lent, self.count) = (self.count, 0);
        let reply = reply.await;
        self.share.slots.members.lock().unwrap()[self.share.place].taken += self.lent;
        (self.count, self.lent) = (self.lent, 0);
        reply
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Put back all but this many.
    pub fn keep(&mut self, count: usize) {
        self.share.put_back(self.count.saturating_sub(count));
        self.count = self.count.min(count);
    }

    /// Jobs run in this many of them, and will put them back.
    pub fn used(mut self, count: usize) {
        if self.count > 0 {
            self.share.wants(count >= self.count);
        }
        self.count -= self.count.min(count);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.share.put_back(self.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Take as many as it may, and start a job in each.
    fn start(share: &Share, most: usize) -> usize {
        let taken = share.take(most);
        let count = taken.count();
        taken.used(count);
        count
    }

    #[test]
    fn one_database_with_work_uses_all_slots_but_one_for_each_other() {
        let slots = Slots::new(10, &[100, 100, 100]);
        let [a, b, c] = [0, 1, 2].map(|place| slots.share(place));

        assert_eq!(start(&a, 100), 8);
        assert_eq!(start(&a, 100), 0);
        assert_eq!((start(&b, 1), start(&c, 1)), (1, 1), "the others start a job at once");
    }

    #[test]
    fn a_flood_yields_what_becomes_free_until_all_have_their_share() {
        let slots = Slots::new(12, &[100, 100, 100]);
        let [flood, b, c] = [0, 1, 2].map(|place| slots.share(place));
        assert_eq!(start(&flood, 100), 10);

        let mut got = [start(&b, 100), start(&c, 100)];
        assert_eq!(got, [1, 1]);
        for _ in 0..20 {
            flood.put_back(1);
            got[0] += start(&b, 100);
            got[1] += start(&c, 100);
            start(&flood, 100);
        }

        assert_eq!(got, [4, 4]);
        assert_eq!(start(&flood, 100), 0);
    }

    #[test]
    fn a_database_whose_slots_others_have_taken_says_so() {
        let slots = Slots::new(4, &[10, 10]);
        let [a, b] = [0, 1].map(|place| slots.share(place));
        assert_eq!((start(&a, 10), start(&b, 10)), (3, 1));
        assert!(b.lacks_room(), "it has work for more");

        b.wants(false);
        assert!(!b.lacks_room(), "it has none");
        b.wants(true);
        a.put_back(2);
        assert!(!b.lacks_room(), "there is room again");
    }

    #[test]
    fn slots_that_a_database_cannot_use_are_left_to_others() {
        let slots = Slots::new(12, &[2, 100]);
        let [small, large] = [0, 1].map(|place| slots.share(place));

        assert_eq!(start(&small, 2), 2);
        small.wants(true);
        assert_eq!(start(&large, 100), 10);
    }

    #[test]
    fn a_claim_that_finds_less_or_fails_puts_back_the_rest() {
        let slots = Slots::new(10, &[10, 10]);
        let [a, b] = [0, 1].map(|place| slots.share(place));

        let taken = a.take(9);
        assert_eq!(taken.count(), 9);
        taken.used(3);
        drop(b.take(6));

        assert_eq!(start(&b, 6), 6);
        assert_eq!(start(&a, 9), 1);
    }

    #[test]
    fn a_database_that_is_no_longer_served_keeps_one_slot_from_the_others() {
        let slots = Slots::new(10, &[100, 100]);
        let [gone, other] = [0, 1].map(|place| slots.share(place));
        let serving = gone.serving();
        assert_eq!(start(&gone, 100), 9);
        assert_eq!(start(&other, 100), 1);

        drop(serving);
        gone.put_back(9);

        assert_eq!(start(&other, 100), 8);
    }

    #[tokio::test]
    async fn a_claim_without_a_reply_leaves_its_slots_to_others_and_hands_back_what_is_too_much() {
        let slots = Slots::new(10, &[100, 100]);
        let [frozen, other] = [0, 1].map(|place| slots.share(place));
        let mut taken = frozen.take(100);
        assert_eq!((taken.count(), start(&other, 100)), (9, 1));
        other.wants(true);

        taken
            .until(async {
                other.freed().await;
                assert_eq!(start(&other, 100), 8);
            })
            .await;

        taken.used(9);
        assert_eq!(frozen.excess(), 8);
        frozen.put_back(8);
        assert_eq!((frozen.excess(), other.has_room()), (0, false));
    }

    #[tokio::test]
    async fn a_database_that_waits_for_a_slot_is_told_when_one_is_free() {
        let slots = Slots::new(2, &[10, 10]);
        let [a, b] = [0, 1].map(|place| slots.share(place));
        assert_eq!((start(&a, 10), start(&b, 10)), (1, 1));
        assert!(!b.has_room());
        b.wants(true);

        a.put_back(1);
        b.freed().await;

        // it is the one that the other needs to start a job at once
        assert!(!b.has_room() && a.has_room());
    }
}
