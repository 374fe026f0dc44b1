//! The OpenAPI description: what the handlers and wire types say about themselves, and what all routes share.
//!
//! `docs/openapi.json` is a copy of it (a test fails when the copy is old).

mod examples;

use std::collections::BTreeMap;

use ntl_api::{
    ChatRequest, CompletionRequest, ErrorBody, FINGERPRINT_HEADER, ResponsesEvent, ResponsesRequest,
};
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::schema::{AdditionalProperties, Object, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{ComponentsBuilder, InfoBuilder, License, OpenApi, OpenApiBuilder, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::apis::{RESPONSES_SHARED, WITHOUT_EFFECT};
use crate::paths;

const KEY: &str = "key";

const ABOUT: &str = "The completions of the OpenAI API, and the `number` object: instead of a text, the exact \
                     distribution over the numbers that the model would write. Fields that are null or absent \
                     have their default. Every response has `x-request-id`: that of the request, or a new one.";

/// Whether a server checks API keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApiKeyUse {
    Required,
    NotChecked,
}

/// The description of these routes as JSON, with a line break at its end.
#[expect(clippy::expect_used, reason = "the description is built from constants")]
pub(crate) fn json(routes: OpenApi, keys: ApiKeyUse) -> String {
    let mut json =
        describe(routes, keys).to_pretty_json().expect("schemas have string keys and finite numbers");
    json.push('\n');
    json
}

#[expect(clippy::expect_used, reason = "the description is built from constants")]
fn describe(mut routes: OpenApi, keys: ApiKeyUse) -> OpenApi {
    // OpenAPI has no word for a path parameter with slashes.
    if let Some(item) = routes.paths.paths.remove(paths::MODEL) {
        routes.paths.paths.insert(paths::MODEL.replace("{*id}", "{id}"), item);
    }
    let mut api_paths = std::mem::take(&mut routes.paths);
    for (path, item) in &mut api_paths.paths {
        for operation in operations(item) {
            complete(operation, path, keys);
        }
    }
    let mut schemas = routes.components.take().expect("routes have schemas").schemas;
    close_bodies(&mut schemas);
    // Event streams have them in texts, which no schema refers to.
    let mut events = vec![(ResponsesEvent::name().into_owned(), ResponsesEvent::schema())];
    ResponsesEvent::schemas(&mut events);
    schemas.extend(events);
    let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("An API key")).build();
    let mut components = ComponentsBuilder::new()
        .schemas_from_iter(schemas)
        .schema_from::<ErrorBody>()
        .schema_from::<ntl_api::ErrorDetail>();
    if keys == ApiKeyUse::Required {
        components = components.security_scheme(KEY, SecurityScheme::Http(scheme));
    }
    let mut license = License::new("MIT OR Apache-2.0");
    license.identifier = Some("MIT OR Apache-2.0".to_owned());
    let info = InfoBuilder::new()
        .title("ntl-server")
        .version(crate::VERSION)
        .description(Some(ABOUT))
        .license(Some(license));
    OpenApiBuilder::new()
        .info(info)
        .paths(api_paths)
        .components(Some(components.build()))
        .tags(Some(tags()))
        .build()
}

fn tags() -> [utoipa::openapi::Tag; 4] {
    [
        ("completions", "Texts and numbers"),
        ("decisions", "Questions with a probability for every allowed answer"),
        ("models", "What is served, and its tokens"),
        ("operations", "Health, metrics and documentation"),
    ]
    .map(|(name, about)| TagBuilder::new().name(name).description(Some(about)).build())
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.post].into_iter().filter_map(Option::as_mut)
}

/// Lists all fields of completions, chats and responses: those without effect as well, and those that chats
/// and responses share with completions. There are no others.
fn close_bodies(schemas: &mut BTreeMap<String, RefOr<Schema>>) {
    let RefOr::T(Schema::Object(completion)) = CompletionRequest::schema() else { return };
    let about = "Accepted for clients of other servers; changes nothing.";
    let field = ObjectBuilder::new().schema_type(SchemaType::AnyValue).description(Some(about)).build();
    let without_effect =
        WITHOUT_EFFECT.map(|name| (name.to_owned(), RefOr::T(Schema::Object(field.clone()))));
    let mut of_chats = completion.properties;
    of_chats.remove("prompt");
    let mut of_responses = of_chats.clone();
    of_responses.retain(|name, _| RESPONSES_SHARED.contains(&name.as_str()));
    let none = Object::new().properties;
    for (request, shared) in [
        (CompletionRequest::name(), none),
        (ChatRequest::name(), of_chats),
        (ResponsesRequest::name(), of_responses),
    ] {
        let Some(RefOr::T(Schema::Object(body))) = schemas.get_mut(&*request) else { continue };
        for (name, field) in shared.into_iter().chain(without_effect.clone()) {
            body.properties.entry(name).or_insert(field);
        }
        body.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
    }
}

/// Adds the examples of a path, an operation id (no path has two methods), the response headers, and the API
/// key of paths that are not public.
fn complete(operation: &mut Operation, path: &str, keys: ApiKeyUse) {
    let words: Vec<&str> = path.split(['/', '.', '{', '}']).filter(|word| !word.is_empty()).collect();
    operation.operation_id = Some(words.join("_"));
    if keys == ApiKeyUse::Required && !paths::is_public(path) {
        operation.security = Some(vec![SecurityRequirement::new::<_, [&str; 0], &str>(KEY, [])]);
    }
    examples::add(operation, path);
    for (status, response) in &mut operation.responses.responses {
        if let RefOr::T(response) = response {
            let mut headers = vec![("x-request-id", "Id of the request")];
            if status == "200" && paths::names_a_model(path) {
                headers.push((FINGERPRINT_HEADER, "`fingerprint` of the model in `/v1/models`"));
            }
            for (name, about) in headers {
                let text = ObjectBuilder::new().schema_type(Type::String).build();
                let header = HeaderBuilder::new().schema(Some(text)).description(Some(about)).build();
                response.headers.insert(name.to_owned(), header.into());
            }
        }
    }
}
