//! Typed jobs: a payload type that names its command, for enqueueing and for registration.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::enqueue::NewJob;

/// A type of job: the payload, the command that runs it, and the defaults of such jobs.
///
/// A job is enqueued by a reference to its payload ([`Bugle::enqueue`](crate::Bugle::enqueue)), and its executor is
/// registered by the type of its second argument ([`Registry::job`](crate::Registry::job)). The command is named once,
/// so the two sides cannot disagree.
///
/// ```
/// use bugle::{Context, Failure, Job, NewJob, Registry};
/// use serde::{Deserialize, Serialize};
/// use std::time::Duration;
///
/// #[derive(Serialize, Deserialize)]
/// struct SendMail {
///     to: String,
/// }
///
/// impl Job for SendMail {
///     const COMMAND: &'static str = "send_mail";
///
///     fn defaults(&self, job: NewJob) -> NewJob {
///         job.queue("mail").max_attempts(5).timeout(Duration::from_secs(30)).unique_key(&self.to)
///     }
/// }
///
/// async fn send_mail(_: Context, mail: SendMail) -> Result<(), Failure> {
///     println!("to {}", mail.to);
///     Ok(())
/// }
///
/// let registry = Registry::new().job(send_mail);
/// assert_eq!(registry.commands(), ["send_mail"]);
///
/// # async fn enqueue(bugle: bugle::Bugle) -> bugle::Result<()> {
/// let mail = SendMail { to: "ada@example.org".into() };
/// bugle.enqueue(&mail).await?;
/// bugle.enqueue(mail.to_job().priority(-10).delay(Duration::from_secs(60))).await?; // this one only
/// # Ok(()) }
/// ```
///
/// A payload that cannot be decoded as this type ends its job as failed, with the code `bad_payload` and the path of
/// the field: it is not retried.
pub trait Job: Serialize + DeserializeOwned {
    /// The command: what `bugle.jobs.command` says, and workers register for. It is stored with each job, so treat it
    /// like a column name: jobs that were enqueued under an old name need an executor under that name
    /// ([`Registry::on`](crate::Registry::on)).
    const COMMAND: &'static str;

    /// What each job of this type is enqueued with: its queue, priority, attempts, timeout, keys. It may depend on the
    /// payload. The caller can override any of it for one job: see [`to_job`](Job::to_job).
    fn defaults(&self, job: NewJob) -> NewJob {
        job
    }

    /// A new job with this payload and the defaults of its type.
    fn to_job(&self) -> NewJob {
        self.defaults(NewJob::new(Self::COMMAND, self))
    }
}

impl<J: Job> From<&J> for NewJob {
    fn from(job: &J) -> NewJob {
        job.to_job()
    }
}

/// So that a job can be enqueued more than once.
impl From<&NewJob> for NewJob {
    fn from(job: &NewJob) -> NewJob {
        job.clone()
    }
}
