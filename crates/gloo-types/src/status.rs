//! The `status` Gloo writes: whether it accepted a table, and for which generation.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use crate::open_enum::open_enum;

/// `status` of a RouteTable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct RouteTableStatus {
    /// What every Gloo object reports.
    pub common: Option<CommonStatus>,
    /// How many policies of each kind apply.
    pub num_applied_route_policies: BTreeMap<String, u32>,
    /// How many tables delegate to this one.
    pub num_parent_route_tables: Option<u32>,
    /// How many gateways may serve this table.
    pub num_allowed_virtual_gateways: Option<u32>,
    /// Workspace that owns the table.
    pub owned_by_workspace: Option<String>,
}

impl RouteTableStatus {
    /// Gloo's verdict, if it gave one.
    pub fn state(&self) -> Option<&State> {
        self.common.as_ref()?.state.as_ref()
    }
}

/// `status.common`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct CommonStatus {
    /// The verdict. The proto field is named `State` with a capital; the usual spelling is read too.
    #[serde(rename = "State", alias = "state")]
    pub state: Option<State>,
    /// Conditions per workspace.
    pub workspace_conditions: BTreeMap<String, u32>,
}

/// Gloo's verdict on one generation of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct State {
    /// `metadata.generation` the verdict is about; a number or a string of digits in JSON.
    #[serde(deserialize_with = "number_or_string")]
    #[cfg_attr(feature = "crd", schemars(schema_with = "int_or_string"))]
    pub observed_generation: i64,
    /// The verdict.
    pub approval: Approval,
    /// Why.
    pub message: String,
}

open_enum! {
    /// Gloo's verdict on an object.
    pub enum Approval {
        /// Not processed yet.
        default Pending = "PENDING",
        /// In force.
        Accepted = "ACCEPTED",
        /// Refused: the object contradicts the API.
        Invalid = "INVALID",
        /// In force, with remarks.
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

/// A number or a string of digits, as Kubernetes says it in a CustomResourceDefinition.
#[cfg(feature = "crd")]
fn int_or_string(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "x-kubernetes-int-or-string": true })
}
