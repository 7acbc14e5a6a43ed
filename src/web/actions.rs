//! Operations as forms: what a button needs to know, and the SQL it stands for.

use crate::admin::operations::{Kind, Operation, Values};

/// A button, or a form behind one.
#[derive(Debug, Clone)]
pub struct Action {
    pub operation: &'static str,
    pub label: String,
    /// `main`, `danger` or nothing.
    pub class: &'static str,
    pub hidden: Vec<(&'static str, String)>,
    pub fields: Vec<Field>,
    pub summary: &'static str,
    /// Whether it is a button only.
    pub is_plain: bool,
    values: Values,
}

/// A value that a person may fill in.
#[derive(Debug, Clone)]
pub struct Field {
    pub name: &'static str,
    pub about: &'static str,
    pub value: String,
    pub required: bool,
    /// `text`, `number`, `area` or `check`.
    pub kind: &'static str,
}

impl Action {
    /// An operation with what is known already; the other parameters become fields.
    pub fn new(name: &str, label: impl Into<String>, known: &[(&'static str, String)]) -> Action {
        let operation = Operation::named(name).expect("an operation of the table");
        let mut values = Values::new();
        for (name, value) in known {
            values = values.with(operation, name, value);
        }
        let fields = (operation.parameters.iter())
            .filter(|parameter| !known.iter().any(|(name, _)| *name == parameter.name) && parameter.name != "token")
            .map(|parameter| Field {
                name: parameter.name,
                about: parameter.about,
                value: String::new(),
                required: parameter.required,
                kind: match parameter.kind {
                    Kind::Integer | Kind::Id => "number",
                    Kind::Boolean => "check",
                    Kind::Json | Kind::Body => "area",
                    _ => "text",
                },
            })
            .collect();
        Action {
            operation: operation.name,
            label: label.into(),
            class: "",
            hidden: known.to_vec(),
            fields,
            summary: operation.summary,
            is_plain: false,
            values,
        }
    }

    /// Without fields: one click does it.
    pub fn plain(mut self) -> Action {
        self.is_plain = true;
        self
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

    /// The same as SQL, to copy.
    pub fn sql(&self) -> String {
        let operation = Operation::named(self.operation).expect("an operation of the table");
        let mut values = self.values.clone();
        for field in &self.fields {
            let example = match (field.value.as_str(), field.required) {
                ("", false) => continue,
                ("", true) => "…",
                (value, _) => value,
            };
            values = values.with(operation, field.name, example);
        }
        operation.sql(&values)
    }
}
