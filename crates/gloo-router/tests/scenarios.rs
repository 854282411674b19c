//! Plays every scenario over the memory store. `plugin_scenarios` documents the file format.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use gloo_types::ObjectKey;
use libtest_mimic::{Arguments, Trial};
use plugin_scenarios::{Place, play, scenarios};
use route_store::{MemoryRouteStore, RouteStore as _};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

#[derive(Default)]
struct Memory(MemoryRouteStore);

impl Place for Memory {
    type Store = MemoryRouteStore;

    fn store(&self) -> MemoryRouteStore {
        self.0.clone()
    }

    async fn create(&self, object: Value) -> Result<()> {
        match object.get("kind").and_then(Value::as_str) {
            Some("Service") => self.0.put_service(object)?,
            _ => self.0.put(object)?,
        };
        Ok(())
    }

    async fn set_status(&self, table: &ObjectKey, status: &Value) -> Result<()> {
        let mut raw = self.0.read(table).await?.into_raw();
        json_patch::merge(&mut raw, &json!({ "status": status }));
        self.0.put(raw)?;
        Ok(())
    }

    async fn delete(&self, table: &ObjectKey) -> Result<()> {
        self.0.remove(table);
        Ok(())
    }
}

fn main() -> Result<ExitCode> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let trial = |(name, text): (String, String)| {
        Trial::test(name, move || {
            let runtime = Runtime::new()?;
            let outcome = runtime.block_on(play(&text, &Memory::default()));
            outcome.map_err(|error| format!("{error:#}").into())
        })
    };
    let trials = scenarios(&folder)?.into_iter().map(trial).collect();
    Ok(libtest_mimic::run(&Arguments::from_args(), trials).exit_code())
}
