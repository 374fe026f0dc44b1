//! The OpenAPI description: what the routes say about themselves, and what is the same for all of them.
//!
//! In: the descriptions at the handlers and wire types. Out: `GET /openapi.json`, of which `docs/openapi.json` is a
//! copy (a test says when it is an old one).

use std::collections::BTreeMap;

use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, License, OpenApi, OpenApiBuilder, Ref, RefOr, Response,
    ResponseBuilder,
};
use utoipa::{IntoResponses, ToSchema};

use ntl_api::ErrorBody;

use crate::app;
use crate::error::AppError;
use crate::routes::{self, MODEL};

const KEY: &str = "key";

const ABOUT: &str = "Completions of the OpenAI API, and the `number` object: instead of a text, the exact \
                     distribution over the numbers that the model would write. Fields that are null or left out \
                     have their default. Every response carries `x-request-id`: the one of the request, or a new one.";

/// The description as JSON, with a line break at its end.
pub fn json() -> String {
    // Schemas have string keys and finite numbers only, so that they always become JSON.
    let mut json = describe().to_pretty_json().unwrap_or_default();
    json.push('\n');
    json
}

fn describe() -> OpenApi {
    let mut described = app::described();
    // Names of models may hold slashes: the router has another word for that.
    if let Some(item) = described.paths.paths.remove(MODEL) {
        described.paths.paths.insert(MODEL.replace("{*id}", "{id}"), item);
    }
    let mut paths = std::mem::take(&mut described.paths);
    for (path, item) in &mut paths.paths {
        for operation in operations(item) {
            complete(operation, path);
        }
    }
    let schemas = described.components.take().unwrap_or_default().schemas;
    let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("An API key")).build();
    let components = ComponentsBuilder::new()
        .schemas_from_iter(schemas)
        .schema_from::<ErrorBody>()
        .schema_from::<ntl_api::ErrorDetail>()
        .security_scheme(KEY, SecurityScheme::Http(scheme));
    let mut license = License::new("MIT OR Apache-2.0");
    license.identifier = Some("MIT OR Apache-2.0".to_owned());
    let info = InfoBuilder::new()
        .title("ntl-server")
        .version(crate::VERSION)
        .description(Some(ABOUT))
        .license(Some(license));
    OpenApiBuilder::new()
        .info(info)
        .paths(paths)
        .components(Some(components.build()))
        .tags(Some(tags()))
        .build()
}

fn tags() -> [utoipa::openapi::Tag; 3] {
    [
        ("completions", "Texts and numbers"),
        ("models", "What is served, and its tokens"),
        ("operations", "Health, metrics and documentation"),
    ]
    .map(|(name, about)| TagBuilder::new().name(name).description(Some(about)).build())
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.post].into_iter().filter_map(Option::as_mut)
}

/// Adds what all routes have: a name (no path has two methods), the header of every response, and the key of those that
/// need one.
fn complete(operation: &mut Operation, path: &str) {
    let words: Vec<&str> = path.split(['/', '.', '{', '}']).filter(|word| !word.is_empty()).collect();
    operation.operation_id = Some(words.join("_"));
    if !routes::is_public(path) {
        operation.security = Some(vec![SecurityRequirement::new::<_, [&str; 0], &str>(KEY, [])]);
    }
    for response in operation.responses.responses.values_mut() {
        if let RefOr::T(response) = response {
            let text = ObjectBuilder::new().schema_type(Type::String).build();
            let header =
                HeaderBuilder::new().schema(Some(text)).description(Some("Name of the request")).build();
            response.headers.insert("x-request-id".to_owned(), header.into());
        }
    }
}

/// All errors of a route that does work.
impl IntoResponses for AppError {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        [
            (400, "The request is wrong; `param` names the field"),
            (401, "No valid API key"),
            (404, "No model of this name"),
            (408, "The body did not arrive in time"),
            (413, "The body is too large"),
            (415, "The body is no plain JSON"),
            (429, "The queue is full; `Retry-After` says when to try again"),
            (500, "The server or the model failed"),
            (503, "Loading, draining or out of order; `Retry-After` says when to try again"),
            (504, "The answer took too long"),
        ]
        .into_iter()
        .map(|(status, about): (u16, _)| {
            let content =
                ContentBuilder::new().schema(Some(Ref::from_schema_name(ErrorBody::name()))).build();
            let response =
                ResponseBuilder::new().description(about).content("application/json", content).build();
            (status.to_string(), RefOr::T(response))
        })
        .collect()
    }
}
