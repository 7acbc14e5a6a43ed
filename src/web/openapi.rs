//! The OpenAPI document, made from the tables that the routes are made from. docs/openapi.json is a copy of it.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::api::{BASE, READS};
use crate::admin::operations::{Answer, Kind, OPERATIONS, Operation, Parameter};

/// The schemas of what is read. Written by hand; a test compares them with what the API answers.
const SCHEMAS: &str = include_str!("schemas.json");

/// The document as it is served.
pub fn text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let text = serde_json::to_string_pretty(&document()).expect("plain data");
        format!("{text}\n")
    });
    &TEXT
}

fn document() -> Value {
    let mut paths = Map::new();
    for place in READS {
        let item = json!({ "$ref": format!("#/components/schemas/{}", place.schema) });
        let schema = match place.is_list {
            true => json!({ "type": "array", "items": item }),
            false => item,
        };
        let query = place.query.iter().map(|(name, kind, about)| {
            json!({ "name": name, "in": "query", "required": false, "description": about, "schema": { "type": kind } })
        });
        let get = json!({
            "operationId": format!("read_{}", format!("{:?}", place.read).to_lowercase()),
            "summary": place.summary,
            "parameters": path_parameters(place.path).chain(query).collect::<Vec<_>>(),
            "responses": responses(schema),
        });
        add(&mut paths, place.path, "get", get);
    }
    let described = json!({
        "operationId": "read_description",
        "summary": "This description.",
        "responses": responses(json!({ "type": "object", "additionalProperties": true })),
    });
    add(&mut paths, "/openapi.json", "get", described);
    for operation in OPERATIONS {
        let mut described = json!({
            "operationId": operation.name,
            "summary": operation.summary,
            "parameters": path_parameters(operation.path).collect::<Vec<_>>(),
            "responses": responses(answer(operation.answer)),
        });
        if let Some(body) = body(operation) {
            described["requestBody"] = body;
        }
        add(&mut paths, operation.path, "post", described);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Bugle",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The JSON API of bugle worker --listen and bugle web. Without a token it can only be read, \
                from the same machine; with one, every request needs it. Statements run as the login of that process, \
                which needs the roles bugle_viewer, bugle_operator and, to enqueue, bugle_enqueuer.",
        },
        "servers": [{ "url": "http://127.0.0.1:8420" }],
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": serde_json::from_str::<Value>(SCHEMAS).expect("schemas.json is JSON"),
        },
    })
}

fn add(paths: &mut Map<String, Value>, path: &str, method: &str, described: Value) {
    let place = paths.entry(format!("{BASE}{path}")).or_insert_with(|| json!({}));
    place[method] = described;
}

fn path_parameters(path: &'static str) -> impl Iterator<Item = Value> {
    let names = path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    names.map(|name| {
        let kind = if ["id", "worker"].contains(&name) {
            "integer"
        } else {
            "string"
        };
        json!({ "name": name, "in": "path", "required": true, "schema": { "type": kind } })
    })
}

fn body(operation: &Operation) -> Option<Value> {
    let is_in_path = |parameter: &&Parameter| operation.path.contains(&format!("{{{}}}", parameter.name));
    let parameters: Vec<&Parameter> = operation.parameters.iter().filter(|p| !is_in_path(p)).collect();
    if let Some(whole) = parameters.iter().find(|parameter| parameter.kind == Kind::Body) {
        let schema = json!({ "type": "object", "description": whole.about, "additionalProperties": true });
        return Some(json!({ "required": true, "content": { "application/json": { "schema": schema } } }));
    }
    if parameters.is_empty() {
        return None;
    }
    let properties: Map<String, Value> = (parameters.iter())
        .map(|parameter| (parameter.name.to_owned(), property(parameter)))
        .collect();
    let required: Vec<&str> = parameters.iter().filter(|p| p.required).map(|p| p.name).collect();
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": required, "properties": properties,
    });
    Some(json!({
        "required": !required.is_empty(),
        "content": { "application/json": { "schema": schema } },
    }))
}

fn property(parameter: &Parameter) -> Value {
    let mut property = match parameter.kind {
        Kind::Id | Kind::Integer => json!({ "type": "integer" }),
        Kind::Number => json!({ "type": "number" }),
        Kind::Boolean => json!({ "type": "boolean" }),
        Kind::Text | Kind::Time | Kind::Interval => json!({ "type": "string" }),
        Kind::Step => json!({ "type": ["integer", "string"] }),
        Kind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        Kind::Json | Kind::Body => json!({}),
    };
    property["description"] = parameter.about.into();
    property
}

fn answer(answer: Answer) -> Value {
    let (name, value) = match answer {
        Answer::Done => ("done", json!({ "type": "boolean" })),
        Answer::Value(name, kind) => (name, json!({ "type": [kind, "null"] })),
        Answer::Rows(name) => {
            let row = json!({ "type": "object", "additionalProperties": true });
            (name, json!({ "type": "array", "items": row }))
        }
    };
    json!({ "type": "object", "additionalProperties": false, "required": [name], "properties": { name: value } })
}

fn responses(schema: Value) -> Value {
    let error = |about: &str| {
        let schema = json!({ "$ref": "#/components/schemas/Error" });
        json!({ "description": about, "content": { "application/json": { "schema": schema } } })
    };
    json!({
        "200": { "description": "Done.", "content": { "application/json": { "schema": schema } } },
        "400": error("The request is invalid."),
        "401": error("The token is missing or wrong."),
        "403": error("The API is read-only without a token, or the login lacks a role."),
        "404": error("There is no such job, queue, worker or schedule."),
        "409": error("Its state does not allow it."),
        "503": error("The database cannot be reached."),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `BUGLE_BLESS=1 cargo test --lib openapi` writes it.
    #[test]
    fn the_description_in_docs_is_the_one_that_is_served() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/openapi.json");
        if std::env::var_os("BUGLE_BLESS").is_some() {
            std::fs::write(file, text()).unwrap();
        }

        let written = std::fs::read_to_string(file).unwrap();

        assert!(
            written == text(),
            "docs/openapi.json is not what is served: BUGLE_BLESS=1 writes it"
        );
    }
}
