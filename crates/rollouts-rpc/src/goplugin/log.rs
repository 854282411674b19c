//! Logging the way a go-plugin host reads it: one hclog record per line on stderr.
//!
//! The host parses every line of a plugin's stderr. A JSON object is taken as an hclog record and
//! logged again with its own level; any other line is judged by a `[LEVEL]` prefix (go-plugin
//! `client.go`, `log_entry.go`). [`install`] is the whole set-up; [`HclogLayer`] is the part to use
//! with another subscriber.

mod record;

use std::backtrace::Backtrace;
use std::io::Write;
use std::panic::PanicHookInfo;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::{LookupSpan, Scope};
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

use record::Record;

/// Frames of a panic's backtrace that are worth a log line.
const MAX_FRAMES: usize = 16;

/// The shape of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// An hclog JSON object: the host keeps level, message, time and every field.
    #[default]
    Json,
    /// `[LEVEL] time module: message: key=value`: for people; a host keeps the level.
    Text,
}

/// A [`tracing_subscriber`] layer that writes one line per event.
///
/// Fields of the enclosing spans are part of the record, outermost first. A line never reaches the
/// 64 KiB at which a host would split it.
#[derive(Debug)]
pub struct HclogLayer<W> {
    format: LogFormat,
    out: Mutex<W>,
}

/// Sends this process's log to stderr: events of `level` and above, and every panic.
///
/// Call it once, first thing: before [`serve`](super::serve::serve), whose start is worth logging.
///
/// # Errors
///
/// When the process has a global subscriber already.
pub fn install(level: LevelFilter, format: LogFormat) -> Result<(), TryInitError> {
    let layer = HclogLayer::new(format, std::io::stderr());
    tracing_subscriber::registry()
        .with(level)
        .with(layer)
        .try_init()?;
    std::panic::set_hook(Box::new(move |panic| write_panic(panic, format)));
    Ok(())
}

impl<W: Write + Send + 'static> HclogLayer<W> {
    /// A layer that writes its lines to `out`, each with a single write.
    pub fn new(format: LogFormat, out: W) -> Self {
        Self {
            format,
            out: Mutex::new(out),
        }
    }
}

impl<S, W> Layer<S> for HclogLayer<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: Write + Send + 'static,
{
    fn on_new_span(&self, attrs: &span::Attributes<'_>, id: &span::Id, ctx: Context<'_, S>) {
        if let Some(span) = ctx.span(id) {
            let mut record = Record::new(*attrs.metadata().level(), "");
            attrs.record(&mut Fields(&mut record));
            span.extensions_mut().insert(SpanFields(record));
        }
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, ctx: Context<'_, S>) {
        if let Some(span) = ctx.span(id)
            && let Some(SpanFields(record)) = span.extensions_mut().get_mut()
        {
            values.record(&mut Fields(record));
        }
    }

    fn on_event(&self, event: &Event<'_>, ctx: Context<'_, S>) {
        let mut record = Record::new(*event.metadata().level(), event.metadata().target());
        for span in ctx
            .event_scope(event)
            .into_iter()
            .flat_map(Scope::from_root)
        {
            if let Some(SpanFields(outer)) = span.extensions().get() {
                record.inherit(outer);
            }
        }
        event.record(&mut Fields(&mut record));
        let line = record.to_line(self.format, Timestamp::now());
        // Logging that fails has nowhere to say so.
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = out.write_all(line.as_bytes());
    }
}

/// The fields of one span, kept in its extensions.
struct SpanFields(Record);

struct Fields<'a>(&'a mut Record);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.set(field.name(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.set(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.set(field.name(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.set(field.name(), record::integer(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.set(field.name(), record::integer(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.set(field.name(), value.into());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.0
            .set(field.name(), crate::to_wire::error_chain(value).into());
    }
}

/// Writes a panic as an error record. The default hook's text would be logged at debug level only.
///
/// It bypasses the subscriber: the panic may have happened inside it.
fn write_panic(panic: &PanicHookInfo<'_>, format: LogFormat) {
    let message = panic
        .payload_as_str()
        .unwrap_or("a panic without a message");
    let mut record = Record::new(Level::ERROR, "panic");
    record.set("message", format!("panic: {message}").into());
    if let Some(location) = panic.location() {
        record.set("location", location.to_string().into());
    }
    if let Some(thread) = std::thread::current().name() {
        record.set("thread", thread.into());
    }
    record.set(
        "backtrace",
        squeeze(&Backtrace::force_capture().to_string()).into(),
    );
    let line = record.to_line(format, Timestamp::now());
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// A backtrace on one line: the nearest frames without type parameters, those of the runtime left
/// out. Empty for a binary without symbols.
fn squeeze(backtrace: &str) -> String {
    let frames = backtrace.lines().filter_map(|line| {
        let (number, name) = line.trim().split_once(": ")?;
        number.parse::<u32>().ok()?;
        // A frame such as `<T as Trait>::method` begins with its parameters.
        Some(
            name.char_indices()
                .find(|&(at, c)| at > 0 && c == '<')
                .map_or(name, |(at, _)| name.split_at(at).0),
        )
    });
    let noise = [
        "std::",
        "core::",
        "alloc::",
        "tokio::",
        "<std::",
        "<core::",
        "<alloc::",
        "<tokio::",
        "__rust",
        "rust_begin",
        "write_panic",
        "{",
    ];
    let mut ours: Vec<_> = frames
        .filter(|name| {
            !noise.iter().any(|prefix| name.starts_with(prefix)) && !name.contains("log::install")
        })
        .take(MAX_FRAMES)
        .collect();
    ours.dedup();
    ours.join(" <- ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[track_caller]
    fn check(emit: impl FnOnce(), expect: &str) {
        let lines = Lines::default();
        let layer = HclogLayer::new(LogFormat::Json, lines.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), emit);
        let written = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let mut record: serde_json::Value = serde_json::from_str(&written).unwrap();
        let time = record
            .as_object_mut()
            .unwrap()
            .shift_remove("@timestamp")
            .unwrap();
        assert!(time.as_str().unwrap().ends_with('Z'), "{time}");
        assert_eq!(record.to_string(), expect);
    }

    #[test]
    fn an_event_becomes_a_record_with_its_fields() {
        check(
            || tracing::info!(target: "router", weight = 5, rollout = "ns/demo", "weight set"),
            r#"{"@level":"info","@message":"weight set","@module":"router","weight":5,"rollout":"ns/demo"}"#,
        );
    }

    #[test]
    fn fields_of_the_spans_around_come_first() {
        check(
            || {
                let outer =
                    tracing::info_span!("call", method = "SetWeight", seq = tracing::field::Empty);
                let _outer = outer.enter();
                outer.record("seq", 7);
                let _inner = tracing::info_span!("table", table = "ns/t").entered();
                tracing::warn!(target: "t", "slow");
            },
            r#"{"@level":"warn","@message":"slow","@module":"t","method":"SetWeight","seq":7,"table":"ns/t"}"#,
        );
    }

    #[test]
    fn an_error_is_logged_with_its_causes() {
        let error = std::io::Error::other("disk full");
        check(
            || tracing::error!(target: "t", error = &error as &(dyn std::error::Error + 'static), "no"),
            r#"{"@level":"error","@message":"no","@module":"t","error":"disk full"}"#,
        );
    }

    #[test]
    fn a_backtrace_is_one_line_of_our_frames() {
        let backtrace = "   0: std::panicking::begin
             at /x.rs:1:2
   1: write_panic
   2: <demo::Router as demo::TrafficRouter>::set_weight::{{closure}}
   3: demo::poll<core::future::Ready<()>>
   4: demo::poll<()>
   5: <core::panic::AssertUnwindSafe<F> as core::ops::FnOnce>::call_once
  13: demo::main
";
        assert_eq!(
            squeeze(backtrace),
            "<demo::Router as demo::TrafficRouter>::set_weight::{{closure}} <- demo::poll <- demo::main"
        );
    }
}
