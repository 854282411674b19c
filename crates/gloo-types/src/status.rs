//! The `status` that Gloo writes: whether it accepted an object, and which generation of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use crate::declare::{open_enum, views};

views! {
    /// `status` of a RouteTable.
    pub struct RouteTableStatus {
        /// The status that all Gloo objects have.
        pub common: Option<CommonStatus>,
        /// Number of policies that apply, by kind.
        pub num_applied_route_policies: BTreeMap<String, u32>,
        /// Number of tables that delegate to this one.
        pub num_parent_route_tables: Option<u32>,
        /// Number of gateways that may serve this table.
        pub num_allowed_virtual_gateways: Option<u32>,
        /// Workspace that owns the table.
        pub owned_by_workspace: Option<String>,
    }
}

impl RouteTableStatus {
    /// Gloo's verdict; `None` if Gloo has not written one.
    pub fn state(&self) -> Option<&State> {
        self.common.as_ref()?.state.as_ref()
    }
}

views! {
    /// `status.common`.
    pub struct CommonStatus {
        /// The verdict. The field of the API is `State` with a capital letter; `state` is accepted, too.
        #[serde(rename = "State", alias = "state")]
        pub state: Option<State>,
        /// Conditions per workspace.
        pub workspace_conditions: BTreeMap<String, u32>,
    }

    /// Gloo's verdict on one generation of an object.
    pub struct State {
        /// The `metadata.generation` that the verdict is for: a number or a string of digits in JSON.
        #[serde(deserialize_with = "number_or_string")]
        #[cfg_attr(feature = "crd", schemars(schema_with = "int_or_string"))]
        pub observed_generation: i64,
        /// The verdict.
        pub approval: Approval,
        /// The reason.
        pub message: String,
    }
}

open_enum! {
    /// Gloo's verdict on an object.
    pub enum Approval {
        /// Not processed yet.
        default Pending = "PENDING",
        /// Accepted.
        Accepted = "ACCEPTED",
        /// Rejected: the object is invalid.
        Invalid = "INVALID",
        /// Accepted, with warnings.
        Warning = "WARNING",
        /// Gloo could not process it.
        Failed = "FAILED",
        /// The license does not cover it.
        Unlicensed = "UNLICENSED",
    }
}

fn number_or_string<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "an integer or a string of digits")]
    enum Form {
        Number(i64),
        Text(String),
    }
    match Form::deserialize(deserializer)? {
        Form::Number(number) => Ok(number),
        Form::Text(text) => text
            .parse()
            .map_err(|_| serde::de::Error::custom("expected an integer or a string of digits")),
    }
}

/// The schema of a number or a string of digits in a CustomResourceDefinition.
#[cfg(feature = "crd")]
fn int_or_string(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "x-kubernetes-int-or-string": true })
}
