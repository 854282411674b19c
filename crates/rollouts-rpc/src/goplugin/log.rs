//! Logging to a go-plugin host: one hclog record per line on stderr.
//!
//! The host parses every line of a plugin's stderr. It logs a JSON object as an hclog record with the level of the record, and any other
//! line with the level of its `[LEVEL]` prefix (go-plugin `client.go`, `log_entry.go`). [`install`] sets up logging for a program;
//! [`HclogLayer`] is the layer for other subscribers.

mod record;

use std::io::Write;
use std::panic::PanicHookInfo;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::{LookupSpan, Scope};
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

use record::Record;

/// The format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogFormat {
    /// An hclog JSON object; the host keeps level, message and time. The message ends with the fields.
    #[default]
    Json,
    /// `[LEVEL] time module: message key=value`, for people; a host keeps only the level.
    Text,
}

/// A [`tracing_subscriber`] layer that writes one line per event.
///
/// A record has the fields of the enclosing spans, outermost first. A line is always shorter than 64 KiB, at which a host splits it.
#[derive(Debug)]
pub struct HclogLayer<W> {
    format: LogFormat,
    out: Mutex<W>,
}

/// Logs events of `level` and above, and all panics, to stderr.
///
/// Call it once, before [`serve`](super::serve::serve), which logs its start.
///
/// # Errors
///
/// Returns `Err` if the process already has a global subscriber.
pub fn install(level: LevelFilter, format: LogFormat) -> Result<(), TryInitError> {
    let layer = HclogLayer::new(format, std::io::stderr());
    // kube's client logs that a request failed, without its verb and object unless `debug` shows its span. Its caller has
    // the error.
    let of_kube = if level < LevelFilter::DEBUG {
        LevelFilter::OFF
    } else {
        level
    };
    let targets = Targets::new().with_default(level);
    tracing_subscriber::registry()
        .with(targets.with_target("kube_client", of_kube))
        .with(layer)
        .try_init()?;
    std::panic::set_hook(Box::new(move |panic| write_panic(panic, format)));
    Ok(())
}

impl<W: Write + Send + 'static> HclogLayer<W> {
    /// Creates a layer that writes each line to `out` in one write.
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
        // An error of the log cannot be logged.
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = out.write_all(line.as_bytes());
    }
}

/// The fields of one span, kept in its extensions.
struct SpanFields(Record);

struct Fields<'a>(&'a mut Record);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // A field with `%` arrives here too: its debug form is its text.
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
            .set(field.name(), crate::error::error_chain(value).into());
    }
}

/// Writes a panic as an error record. A host would log the text of the default hook at debug level.
///
/// It does not use the subscriber, because the panic may have happened in it.
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
    let line = record.to_line(format, Timestamp::now());
    let _ = std::io::stderr().write_all(line.as_bytes());
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
            r#"{"@level":"info","@message":"weight set weight=5 rollout=ns/demo","@module":"router"}"#,
        );
    }

    #[test]
    fn fields_of_the_enclosing_spans_come_first() {
        check(
            || {
                let outer =
                    tracing::info_span!("call", method = "SetWeight", seq = tracing::field::Empty);
                let _outer = outer.enter();
                outer.record("seq", 7);
                let _inner = tracing::info_span!("table", table = "ns/t").entered();
                tracing::warn!(target: "t", "slow");
            },
            r#"{"@level":"warn","@message":"slow method=SetWeight seq=7 table=ns/t","@module":"t"}"#,
        );
    }

    #[test]
    fn an_error_is_logged_with_its_causes() {
        let error = std::io::Error::other("disk full");
        check(
            || tracing::error!(target: "t", error = &error as &(dyn std::error::Error + 'static), "no"),
            r#"{"@level":"error","@message":"no error=\"disk full\"","@module":"t"}"#,
        );
    }
}
