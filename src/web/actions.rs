//! Operations as forms: what a button needs to know, and the SQL it stands for.

use crate::admin::operations::{Kind, Operation, Parameter, Values, array};
use crate::read::{PolicyKind, Rights, Search};
use crate::state::State;
use crate::web::text::words;

/// The states a job can be put into.
pub const NEW_STATES: &[&str] = &[
    "scheduled",
    "ready",
    "retrying",
    "paused",
    "completed",
    "failed",
    "cancelled",
];

/// A form behind a button.
#[derive(Debug, Clone)]
pub struct Action {
    /// Where it is posted to, below the base path.
    pub path: String,
    pub label: String,
    /// `main`, `danger` or nothing.
    pub class: &'static str,
    pub hidden: Vec<(&'static str, String)>,
    pub fields: Vec<Field>,
    pub summary: &'static str,
    source: Source,
}

/// What a form does.
#[derive(Debug, Clone)]
enum Source {
    Operation(&'static Operation),
    /// A verb for everything that matches a query, rehearsed first.
    Bulk(&'static str),
    /// This statement.
    Statement(String),
}

/// A value that a person may fill in.
#[derive(Debug, Clone)]
pub struct Field {
    pub name: &'static str,
    pub label: String,
    pub about: &'static str,
    pub value: String,
    /// What it was before, if emptying the field is to remove it.
    pub was: Option<String>,
    pub required: bool,
    /// The heading above it, if it is the first below that.
    pub heading: &'static str,
    /// `text`, `number`, `area`, `check` or `select`.
    pub kind: &'static str,
    /// What can be selected. An empty one leaves it out.
    pub choices: Vec<String>,
    /// What holds if it is left out, where that is known.
    pub default: &'static str,
}

impl Field {
    /// What a list is narrowed to; an empty one leaves it as it is.
    pub fn filter(name: &'static str, value: String, mut choices: Vec<String>) -> Field {
        if !choices.is_empty() {
            choices.insert(0, String::new());
        }
        Field {
            name,
            label: match name {
                "since" => "Within".to_owned(),
                "within" => "Failed within".to_owned(),
                "worker" => "Worker or host".to_owned(),
                name => label(name),
            },
            about: "",
            value,
            was: None,
            required: false,
            heading: "",
            kind: if choices.is_empty() { "text" } else { "select" },
            choices,
            default: "",
        }
    }

    /// The choice that leaves it out.
    pub fn none(&self) -> String {
        match self.default {
            "" => "–".to_owned(),
            default => format!("{} (default)", words(default)),
        }
    }

    /// The list that completes it, if there is one.
    pub fn list(&self) -> &'static str {
        match self.name {
            "command" => "commands",
            "queue" => "queues",
            "retry_policy" => "policies",
            "timezone" => "zones",
            _ => "",
        }
    }

    fn new(operation: &Operation, parameter: &Parameter) -> Field {
        let choices = choices(operation.name, parameter);
        Field {
            name: parameter.name,
            label: label(parameter.name),
            about: parameter.about,
            value: String::new(),
            was: None,
            required: parameter.required,
            heading: "",
            kind: match parameter.kind {
                _ if !choices.is_empty() => "select",
                Kind::Integer | Kind::Id => "number",
                Kind::Boolean => "check",
                Kind::Json | Kind::Body => "area",
                _ => "text",
            },
            choices,
            // a schedule that is changed keeps what is left out
            default: match (operation.name, parameter.name) {
                ("add_schedule", "timezone") => "UTC",
                ("add_schedule", "queue") => "default",
                ("add_schedule", "priority") => "0",
                ("add_schedule", "payload") => "{}",
                ("add_schedule", "misfire") => "run_once",
                ("add_schedule", "catch_up_limit") => "10",
                ("add_schedule", "overlap") => "allow",
                ("set_policy", "kind") => "exponential",
                ("set_policy", "retries") => "15",
                ("set_policy", "delay") => "5 seconds",
                ("set_policy", "factor") => "2",
                ("set_policy", "max_delay") => "1 hour",
                ("set_policy", "jitter") => "0.1",
                ("set_policy", "days") => "2",
                _ => "",
            },
        }
    }
}

/// The values of a closed set.
fn choices(operation: &str, parameter: &Parameter) -> Vec<String> {
    let all = match (operation, parameter.name) {
        (_, "to") => NEW_STATES.to_vec(),
        ("set_step", "state") => vec!["done", "skipped", "pending"],
        (_, "state") => State::ALL.iter().map(|state| state.as_str()).collect(),
        (_, "misfire") => vec!["run_once", "catch_up", "skip"],
        (_, "overlap") => vec!["allow", "skip"],
        (_, "order_on_retry") => vec!["block", "pass"],
        ("set_policy", "kind") => PolicyKind::ALL.iter().map(|kind| kind.as_str()).collect(),
        _ => Vec::new(),
    };
    let none = (!all.is_empty() && !parameter.required).then_some("");
    none.into_iter().chain(all).map(str::to_owned).collect()
}

/// The fields of a schedule under their headings.
fn grouped(fields: Vec<Field>) -> Vec<Field> {
    const GROUPS: [(&str, &[&str]); 4] = [
        ("", &["name", "command"]),
        ("When", &["cron", "every", "timezone", "starts_at", "ends_at"]),
        ("If it is late", &["misfire", "catch_up_limit", "overlap"]),
        ("Its jobs", &[]),
    ];
    let place = |name: &str| {
        let listed = GROUPS.iter().position(|(_, names)| names.contains(&name));
        listed.unwrap_or(GROUPS.len() - 1)
    };
    let mut fields = fields;
    fields.sort_by_key(|field| place(field.name));
    let mut last = "";
    for field in &mut fields {
        let heading = GROUPS[place(field.name)].0;
        if heading != last {
            field.heading = heading;
            last = heading;
        }
    }
    fields
}

/// The name of a parameter as a person says it.
pub fn label(name: &str) -> String {
    let words = match name {
        "to" => "State",
        "run_at" => "Due",
        "every" => "Every",
        "cron" => "Cron expression",
        "timezone" => "Time zone",
        "misfire" => "Missed runs",
        "overlap" => "While an earlier job runs",
        "max_running" => "Running at once",
        "max_starts" => "Starts in a period",
        "starts_period" => "Period",
        "max_running_per_key" => "Running at once, per key",
        "max_starts_per_key" => "Starts in a period, per key",
        "starts_per_key_period" => "Period, per key",
        "order_on_retry" => "Order while a job is retried",
        "family" => "With its workflow and children",
        "error_like" => "Error contains",
        "older_than" => "Unchanged for",
        "since" => "Enqueued within",
        "ended_since" => "Ended within",
        "fingerprint" => "Kind of error",
        "limit" => "At most",
        "retry_policy" => "Retry policy",
        "per_day" => "Retries per day",
        "set_policy" => "Set retry policy",
        "remove_policy" => "Remove retry policy",
        "max_delay" => "Longest delay",
        "unique_mode" => "Second job with the same key",
        "idempotency_ttl" => "Idempotency keys kept for",
        _ => "",
    };
    if !words.is_empty() {
        return words.to_owned();
    }
    let words = name.replace('_', " ");
    let mut chars = words.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars).collect(),
        None => words,
    }
}

impl Action {
    /// An operation with what is known already; the other parameters become fields.
    pub fn new(name: &str, label: impl Into<String>, known: &[(&'static str, String)]) -> Action {
        let operation = Operation::named(name).expect("an operation of the table");
        let fields = (operation.parameters.iter())
            .filter(|parameter| !known.iter().any(|(name, _)| *name == parameter.name) && parameter.name != "token")
            .map(|parameter| Field::new(operation, parameter))
            .collect();
        let fields = match operation.name {
            "add_schedule" | "change_schedule" => grouped(fields),
            _ => fields,
        };
        Action {
            path: format!("/act/{}", operation.name),
            label: label.into(),
            class: "",
            hidden: known.to_vec(),
            fields,
            summary: operation.summary,
            source: Source::Operation(operation),
        }
    }

    /// A verb for everything that matches a query, which can be changed. It is rehearsed before anything changes.
    pub fn bulk(verb: &'static str, label: impl Into<String>, query: impl Into<String>) -> Action {
        let field = Field {
            name: "q",
            label: "Jobs".to_owned(),
            about: "The query they match, as on the page of jobs. What would happen is shown before anything changes.",
            value: query.into(),
            was: None,
            required: true,
            heading: "",
            kind: "text",
            choices: Vec::new(),
            default: "",
        };
        Action {
            path: "/jobs/bulk".to_owned(),
            label: label.into(),
            class: "",
            hidden: vec![("verb", verb.to_owned()), ("all", "true".to_owned())],
            fields: vec![field],
            summary: "Dry run for all matching jobs.",
            source: Source::Bulk(verb),
        }
    }

    /// End a session of the server: it keeps a lock or a snapshot.
    pub fn end_session(pid: i32) -> Action {
        Action {
            path: "/database/end-session".to_owned(),
            label: format!("End session {pid}"),
            class: "danger",
            hidden: vec![("pid", pid.to_string())],
            fields: Vec::new(),
            summary: "End this session of the server. Its transaction is rolled back, and its program is disconnected.",
            source: Source::Statement(format!("select pg_terminate_backend({pid});")),
        }
    }

    /// Run the maintenance of history now.
    pub fn upkeep() -> Action {
        Action {
            path: "/database/upkeep".to_owned(),
            label: "Run upkeep".to_owned(),
            class: "main",
            hidden: Vec::new(),
            fields: Vec::new(),
            summary: "Create the partitions of history that are missing, and drop the days that are over.",
            source: Source::Statement("select bugle.upkeep();  -- until it returns null".to_owned()),
        }
    }

    /// What carries out a statement that a finding or a reason gives as its fix, if this login may.
    pub fn of_fix(rights: &Rights, fix: &str) -> Option<Action> {
        let session = fix
            .strip_prefix("select pg_terminate_backend(")
            .and_then(|rest| rest.split(')').next());
        match session.and_then(|pid| pid.parse().ok()) {
            Some(pid) => rights.can_end_sessions.then(|| Action::end_session(pid)),
            None if fix.starts_with("select bugle.upkeep()") => rights.can_maintain.then(Action::upkeep),
            None => None,
        }
    }

    /// An operation with what a form has: `known` names what is not to be edited.
    pub fn filled(operation: &'static Operation, form: &super::site::Fields) -> Action {
        let known: Vec<&str> = form
            .get("known")
            .map_or_else(Vec::new, |known| known.split(',').collect());
        let hidden: Vec<(&'static str, String)> = (operation.parameters.iter())
            .filter(|parameter| known.contains(&parameter.name))
            .filter_map(|parameter| Some((parameter.name, form.get(parameter.name)?.clone())))
            .collect();
        let mut action = Action::new(operation.name, label(operation.name), &hidden);
        for field in &mut action.fields {
            field.value = form.get(field.name).cloned().unwrap_or_default();
            field.was = form.get(&format!("was.{}", field.name)).cloned();
        }
        action
    }

    pub fn main(mut self) -> Action {
        self.class = "main";
        self
    }

    pub fn danger(mut self) -> Action {
        self.class = "danger";
        self
    }

    /// A field that is filled in already.
    pub fn preset(mut self, name: &str, value: impl Into<String>) -> Action {
        if let Some(field) = self.fields.iter_mut().find(|field| field.name == name) {
            field.value = value.into();
        }
        self
    }

    /// What is stored now: what is emptied is removed, and what stays is left alone.
    pub fn stored(mut self, name: &str, value: Option<impl Into<String>>) -> Action {
        if let Some(field) = self.fields.iter_mut().find(|field| field.name == name) {
            field.value = value.map(Into::into).unwrap_or_default();
            field.was = Some(field.value.clone());
        }
        self
    }

    /// The names of the hidden values.
    pub fn known(&self) -> String {
        let names: Vec<&str> = self.hidden.iter().map(|(name, _)| *name).collect();
        names.join(",")
    }

    /// Whether its next times can be shown before it is stored.
    pub fn has_times(&self) -> bool {
        self.path.ends_with("/add_schedule") || self.path.ends_with("/change_schedule")
    }

    /// The same as SQL, to copy.
    pub fn sql(&self) -> String {
        let operation = match &self.source {
            Source::Operation(operation) => operation,
            Source::Statement(sql) => return sql.clone(),
            Source::Bulk(verb) => {
                let query = self.fields.first().map_or("", |field| &field.value);
                let found = Search::parse(query).map(|search| search.ids_sql(1000));
                let jobs = found.unwrap_or_else(|_| "select j.id from bugle.jobs j where …".to_owned());
                return format!("select * from bugle.{verb}(array({jobs}));");
            }
        };
        let mut values = Values::new();
        for (name, value) in &self.hidden {
            values = values.with(operation, name, value);
        }
        for field in &self.fields {
            let example = match (field.value.as_str(), field.required) {
                (value, _) if field.was.as_deref() == Some(value) => continue,
                ("", false) => continue,
                ("", true) => "…",
                (value, _) => value,
            };
            values = values.with(operation, field.name, example);
        }
        operation.sql(&values)
    }
}

/// The values of a form for an operation. A field that was left empty is left out; one that was emptied is removed.
pub fn values_of(operation: &Operation, form: &super::site::Fields) -> Values {
    let text_of = |name: &str| form.get(name).map_or("", |text| text.trim());
    let is_changed = |name: &str| {
        let was = form.get(&format!("was.{name}"));
        was.is_none_or(|was| was.trim() != text_of(name))
    };
    let mut values = Values::new();
    for parameter in operation.parameters {
        let Some(text) = form.get(parameter.name) else { continue };
        let had = form
            .get(&format!("was.{}", parameter.name))
            .filter(|was| !was.trim().is_empty());
        if !is_changed(parameter.name) {
            continue;
        }
        match (text.trim().is_empty(), had, operation.name) {
            (false, ..) if parameter.kind == Kind::Texts && !text.trim().starts_with('{') => {
                let texts: Vec<&str> = text.split(',').map(str::trim).collect();
                values = values.with(operation, parameter.name, &array(&texts));
            }
            (false, ..) => values = values.with(operation, parameter.name, text),
            (true, Some(_), "change_schedule") => values = values.with(operation, parameter.name, ""),
            (true, Some(_), "set_limits") if parameter.kind == Kind::Integer => {
                values = values.with(operation, parameter.name, "0");
            }
            _ => {}
        }
    }
    // a schedule has a cron expression or an interval: the one that was written replaces the other
    if operation.name == "change_schedule" {
        for (new, old) in [("cron", "every"), ("every", "cron")] {
            let is_new = is_changed(new) && !text_of(new).is_empty();
            let had = form
                .get(&format!("was.{old}"))
                .is_some_and(|was| !was.trim().is_empty());
            if is_new && had && !is_changed(old) {
                values = values.with(operation, old, "");
            }
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::super::site::Fields;
    use super::*;

    fn form(pairs: &[(&str, &str)]) -> Fields {
        (pairs.iter())
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn what_was_emptied_is_removed_and_what_stayed_is_left_alone() {
        let change = Operation::named("change_schedule").unwrap();
        let same = [("was.timeout", "00:05:00"), ("was.queue", "mail"), ("queue", "mail")];
        let given = [&same[..], &[("name", "n"), ("timeout", "")]].concat();

        let sql = change.sql(&values_of(change, &form(&given)));
        assert_eq!(sql, "update bugle.schedules set timeout = null where name = 'n';");

        let given = [
            ("name", "n"),
            ("was.cron", "@daily"),
            ("cron", "@daily"),
            ("was.every", ""),
            ("every", "1 hour"),
        ];
        let sql = change.sql(&values_of(change, &form(&given)));
        assert_eq!(
            sql,
            "update bugle.schedules set cron = null, every = '1 hour' where name = 'n';"
        );

        let limits = Operation::named("set_limits").unwrap();
        let given = [("queue", "q"), ("was.max_running", "3"), ("max_running", "")];
        let sql = limits.sql(&values_of(limits, &form(&given)));
        assert_eq!(sql, "select bugle.set_limits('q', p_max_running => 0);");
    }
}
