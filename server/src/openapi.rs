//! The OpenAPI description: what the handlers and wire types say about themselves, and what all routes share.
//!
//! `docs/openapi.json` is a copy of it (a test fails when the copy is old).

use ntl_api::ErrorBody;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{ComponentsBuilder, InfoBuilder, License, OpenApi, OpenApiBuilder, RefOr};

use crate::paths;

const KEY: &str = "key";

const ABOUT: &str = "The completions of the OpenAI API, and the `number` object: instead of a text, the exact \
                     distribution over the numbers that the model would write. Fields that are null or absent \
                     have their default. Every response has `x-request-id`: that of the request, or a new one.";

/// The description of these routes as JSON, with a line break at its end.
#[expect(clippy::expect_used, reason = "the description is built from constants")]
pub(crate) fn json(routes: OpenApi) -> String {
    let mut json = describe(routes).to_pretty_json().expect("schemas have string keys and finite numbers");
    json.push('\n');
    json
}

#[expect(clippy::expect_used, reason = "the description is built from constants")]
fn describe(mut routes: OpenApi) -> OpenApi {
    // OpenAPI has no word for a path parameter with slashes.
    if let Some(item) = routes.paths.paths.remove(paths::MODEL) {
        routes.paths.paths.insert(paths::MODEL.replace("{*id}", "{id}"), item);
    }
    let mut api_paths = std::mem::take(&mut routes.paths);
    for (path, item) in &mut api_paths.paths {
        for operation in operations(item) {
            complete(operation, path);
        }
    }
    let schemas = routes.components.take().expect("routes have schemas").schemas;
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
        .paths(api_paths)
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

/// Adds what all routes share: an operation id (no path has two methods), the response header `x-request-id`, and the
/// API key of paths that are not public.
fn complete(operation: &mut Operation, path: &str) {
    let words: Vec<&str> = path.split(['/', '.', '{', '}']).filter(|word| !word.is_empty()).collect();
    operation.operation_id = Some(words.join("_"));
    if !paths::is_public(path) {
        operation.security = Some(vec![SecurityRequirement::new::<_, [&str; 0], &str>(KEY, [])]);
    }
    for response in operation.responses.responses.values_mut() {
        if let RefOr::T(response) = response {
            let text = ObjectBuilder::new().schema_type(Type::String).build();
            let header =
                HeaderBuilder::new().schema(Some(text)).description(Some("Id of the request")).build();
            response.headers.insert("x-request-id".to_owned(), header.into());
        }
    }
}
