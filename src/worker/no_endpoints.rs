//! Without the feature `web` a worker has no endpoints, and does not start with a listen address.

use std::sync::Arc;

use crate::config::Settings;
use crate::error::{Error, Result};
use crate::worker::crew::Crew;
use crate::worker::fleet::Part;
use crate::worker::register::WorkerProfile;

/// There is none.
pub enum Bound {}

pub async fn bind(_: &WorkerProfile, settings: &Settings) -> Result<Option<Bound>> {
    match settings.listen {
        None => Ok(None),
        Some(_) => Err(Error::without_feature("the setting listen", "web")),
    }
}

pub async fn open_for_all(_: &[(WorkerProfile, Settings, Part)], settings: &Settings) -> Result<Option<Bound>> {
    match settings.listen {
        None => Ok(None),
        Some(_) => Err(Error::without_feature("the setting listen", "web")),
    }
}

impl Bound {
    pub fn open(self, _: &WorkerProfile, _: &Settings, _: &Arc<Crew>) {
        match self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execute::registry::Registry;

    #[tokio::test]
    async fn a_worker_that_is_told_to_listen_names_the_feature_it_lacks() {
        let settings = Settings {
            listen: Some(([127, 0, 0, 1], 0).into()),
            ..Settings::default()
        };
        let profile = WorkerProfile::new(&settings, &Registry::new()).unwrap();

        let error = bind(&profile, &settings).await.err().unwrap().to_string();

        assert!(error.contains("listen needs the feature web"), "{error}");
    }
}
