//! Export of job spans to a collector: OTLP over HTTP, configured by the `OTEL_*` variables. Requires the feature
//! `otlp`.
//!
//! The span around an executor is a `tracing` span with the fields that logs show. It is renamed to OpenTelemetry's
//! semantic conventions for messaging on export, so that logs are the same with and without an exporter.

use std::env;
use std::time::Duration;

use opentelemetry::trace::{
    Link, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer,
    TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing::Subscriber;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::LookupSpan;

use crate::error::{Error, Result};
use crate::execute::executor::Outcome;

/// How long exporting the last spans may take when the worker stops.
const FAREWELL: Duration = Duration::from_secs(5);

/// The name of the span around an executor, see `Crew::start`.
const JOB: &str = "job";

/// Exports spans until it is dropped; then it sends the remaining ones.
pub struct Exporter {
    provider: SdkTracerProvider,
    relation: Relation,
}

/// How the span of a job relates to the span that enqueued it.
#[derive(Debug, Clone, Copy)]
enum Relation {
    /// A separate trace with a link to the span that enqueued the job.
    Link,
    /// Part of the trace the job was enqueued in.
    Parent,
}

impl Exporter {
    /// Read the environment; `None` if it does not configure a collector.
    ///
    /// # Errors
    /// If the configuration is invalid or not supported.
    pub fn from_environment() -> Result<Option<Exporter>> {
        if !is_wanted()? {
            return Ok(None);
        }
        let relation = match variable("BUGLE_TRACE").as_deref() {
            None | Some("link") => Relation::Link,
            Some("parent") => Relation::Parent,
            Some(other) => return Err(refused("BUGLE_TRACE", other, "link or parent")),
        };
        for name in ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"] {
            if let Some(other) = variable(name).filter(|protocol| protocol != "http/protobuf") {
                return Err(refused(name, &other, "http/protobuf (port 4318 of a collector)"));
            }
        }
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(client()?)
            .build()
            .map_err(|error| Error::new(format!("spans cannot be exported: {error}")).with_hint(HINT))?;
        let mut resource = Resource::builder();
        if variable("OTEL_SERVICE_NAME").is_none()
            && !variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|all| all.contains("service.name="))
        {
            resource = resource.with_service_name("bugle");
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .build();
        Ok(Some(Exporter { provider, relation }))
    }

    /// The layer that exports the spans of jobs and the spans that executors create inside them. Independent of the log
    /// level.
    pub fn layer<S: Subscriber + for<'span> LookupSpan<'span>>(&self) -> impl Layer<S> + use<S> {
        let quiet = [
            "tokio_postgres",
            "postgres",
            "hyper",
            "hyper_util",
            "reqwest",
            "rustls",
            "opentelemetry",
        ];
        let targets = Targets::new()
            .with_default(LevelFilter::INFO)
            .with_targets(quiet.map(|library| (library, LevelFilter::OFF)));
        let tracer = AsMessages {
            tracer: self.provider.tracer("bugle"),
            relation: self.relation,
        };
        tracing_opentelemetry::layer()
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_tracer(tracer)
            .with_filter(targets)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if let Err(error) = self.provider.shutdown_with_timeout(FAREWELL) {
            tracing::warn!(event = "export", %error, "the last spans were not delivered");
        }
    }
}

const HINT: &str = "Check the variables OTEL_EXPORTER_OTLP_*, or set OTEL_TRACES_EXPORTER=none.";

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn refused(name: &str, value: &str, expected: &str) -> Error {
    Error::new(format!("{name} must be {expected}, not {value:?}")).with_hint(HINT)
}

fn endpoint() -> Option<String> {
    variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(|| variable("OTEL_EXPORTER_OTLP_ENDPOINT"))
}

/// Unlike in the specification, spans are not sent to localhost by default.
fn is_wanted() -> Result<bool> {
    if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(false);
    }
    match variable("OTEL_TRACES_EXPORTER").as_deref() {
        None => Ok(endpoint().is_some()),
        Some("otlp") => Ok(true),
        Some("none") => Ok(false),
        Some(other) => Err(refused("OTEL_TRACES_EXPORTER", other, "otlp or none")),
    }
}

/// A blocking client, used by the exporter's own thread. It cannot be created on a thread of an async runtime.
fn client() -> Result<reqwest::blocking::Client> {
    let timeout = variable("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT").or_else(|| variable("OTEL_EXPORTER_OTLP_TIMEOUT"));
    let timeout = timeout.and_then(|milliseconds| milliseconds.parse().ok());
    let timeout = Duration::from_millis(timeout.unwrap_or(10_000));
    let is_plain = !endpoint().is_some_and(|address| address.starts_with("https:"));
    let made = std::thread::spawn(move || {
        // another part of the program may have installed a provider already
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::blocking::Client::builder()
            .user_agent(concat!("bugle/", env!("CARGO_PKG_VERSION")))
            .timeout(timeout)
            .redirect(reqwest::redirect::Policy::none());
        if is_plain {
            // needs no certificates, which small images do not have
            builder = builder.tls_certs_only([]);
        }
        builder.build()
    });
    let made = made.join().expect("creating a client does not panic");
    made.map_err(|error| Error::new(format!("spans cannot be exported: {error}")).with_hint(HINT))
}

/// Starts the spans of jobs according to OpenTelemetry's messaging conventions, and all others unchanged.
#[derive(Debug, Clone)]
struct AsMessages {
    tracer: SdkTracer,
    relation: Relation,
}

impl Tracer for AsMessages {
    type Span = <SdkTracer as Tracer>::Span;

    fn build_with_context(&self, mut builder: SpanBuilder, around: &Context) -> Self::Span {
        let fields = builder.attributes.take().unwrap_or_default();
        if builder.name != JOB || !fields.iter().any(|field| field.key.as_str() == "claim") {
            builder.attributes = Some(fields);
            return self.tracer.build_with_context(builder, around);
        }
        let enqueued = value_of(&fields, "traceparent").and_then(|text| parse(&text));
        builder.name = format!("process {}", value_of(&fields, "queue").unwrap_or_default()).into();
        builder.span_kind = Some(SpanKind::Consumer);
        builder.attributes = Some(conventional(fields));
        match (enqueued, self.relation) {
            (None, _) => self.tracer.build_with_context(builder, around),
            (Some(enqueued), Relation::Link) => {
                builder.links.get_or_insert_default().push(Link::with_context(enqueued));
                self.tracer.build_with_context(builder, around)
            }
            (Some(enqueued), Relation::Parent) => {
                let around = around.with_remote_span_context(enqueued);
                self.tracer.build_with_context(builder, &around)
            }
        }
    }
}

fn value_of(fields: &[KeyValue], name: &str) -> Option<String> {
    let field = fields.iter().find(|field| field.key.as_str() == name)?;
    Some(field.value.as_str().into_owned())
}

fn conventional(fields: Vec<KeyValue>) -> Vec<KeyValue> {
    let always = [
        ("messaging.system", "bugle"),
        ("messaging.operation.type", "process"),
        ("messaging.operation.name", "process"),
    ];
    let renamed = fields.into_iter().filter_map(|field| {
        let text = |name: &'static str, field: &KeyValue| KeyValue::new(name, field.value.as_str().into_owned());
        Some(match field.key.as_str() {
            "queue" => text("messaging.destination.name", &field),
            "job" => text("messaging.message.id", &field),
            "worker" => text("messaging.client.id", &field),
            "command" => text("messaging.bugle.command", &field),
            "attempt" => KeyValue::new("messaging.bugle.attempt", field.value),
            "claim" => KeyValue::new("messaging.bugle.claim", field.value),
            "traceparent" | "trace_id" | "span_id" => return None,
            _ => field,
        })
    });
    always
        .map(|(name, value)| KeyValue::new(name, value))
        .into_iter()
        .chain(renamed)
        .collect()
}

fn parse(text: &str) -> Option<SpanContext> {
    let parts: Vec<&str> = super::parent(text)?.split('-').collect();
    Some(SpanContext::new(
        TraceId::from_hex(parts[1]).ok()?,
        SpanId::from_hex(parts[2]).ok()?,
        TraceFlags::new(u8::from_str_radix(parts[3], 16).ok()?),
        true,
        TraceState::NONE,
    ))
}

/// The trace and the span that this span is exported as.
pub fn ids(span: &tracing::Span) -> Option<(u128, u64)> {
    let context = span.context();
    let here = context.span().span_context().clone();
    let ids = (
        u128::from_be_bytes(here.trace_id().to_bytes()),
        u64::from_be_bytes(here.span_id().to_bytes()),
    );
    here.is_valid().then_some(ids)
}

/// The current span in the W3C Trace Context format, for services called from here.
pub fn current() -> Option<String> {
    let context = tracing::Span::current().context();
    let here = context.span().span_context().clone();
    let flags = here.trace_flags().to_u8();
    here.is_valid()
        .then(|| format!("00-{}-{}-{flags:02x}", here.trace_id(), here.span_id()))
}

/// Record the outcome of the attempt. Failures are recorded by their code only, because the message may be
/// confidential.
pub fn ended(span: &tracing::Span, outcome: &Outcome) {
    let how = match outcome {
        Outcome::Complete(_) | Outcome::Settled => "completed",
        Outcome::Fail(failure) => {
            let code = failure.code.as_deref().unwrap_or("_OTHER").to_owned();
            span.set_attribute("error.type", code);
            span.set_status(Status::error(""));
            "failed"
        }
        Outcome::Snooze(_) => "snoozed",
        Outcome::Wait { .. } => "waiting",
        Outcome::Skip(_) => "skipped",
        Outcome::Cancelled(_) => "cancelled",
    };
    span.set_attribute("messaging.bugle.outcome", how);
}
