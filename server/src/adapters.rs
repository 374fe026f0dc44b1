//! Which model an adapter of the command line is for.

use crate::config::{ConfigError, ModelConfig};

/// The models, with the adapters that were asked for as `[NAME=]DIR`.
pub(crate) fn attached(
    mut models: Vec<ModelConfig>,
    adapters: &[String],
) -> Result<Vec<ModelConfig>, ConfigError> {
    for text in adapters {
        let nobody = || ConfigError::AdapterOfNoModel(text.clone());
        // A path with an equals sign in it must be written with a name, or begin with `.` or `/`.
        let (name, folder) = match text.split_once('=') {
            Some((name, folder)) if !text.starts_with(['.', '/']) => (Some(name), folder),
            _ => (None, text.as_str()),
        };
        let model = match (name, models.as_mut_slice()) {
            (None, [only]) => Some(only),
            (None, _) => None,
            (Some(name), all) => all.iter_mut().find(|model| model.name == name),
        };
        let model = model.filter(|_| !folder.is_empty()).ok_or_else(nobody)?;
        if model.adapter.replace(folder.into()).is_some() {
            return Err(ConfigError::TwoAdapters(model.name.clone()));
        }
    }
    Ok(models)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelSource;

    fn attach(models: &[&str], adapters: &[&str]) -> Result<Vec<Option<String>>, String> {
        let model = |name: &&str| ModelConfig {
            name: (*name).to_owned(),
            source: ModelSource::Path((*name).into()),
            adapter: None,
        };
        let adapters: Vec<String> = adapters.iter().map(|&text| text.to_owned()).collect();
        let models = attached(models.iter().map(model).collect(), &adapters);
        let path = |model: ModelConfig| model.adapter.map(|folder| folder.display().to_string());
        models.map(|models| models.into_iter().map(path).collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_adapter_is_for_the_only_model_or_for_the_one_it_names() {
        let some = |folder: &str| Some(folder.to_owned());
        assert_eq!(attach(&["a"], &["x/y"]), Ok(vec![some("x/y")]));
        assert_eq!(attach(&["a", "b"], &["b=/x=1"]), Ok(vec![None, some("/x=1")]));
        assert_eq!(attach(&["a"], &["/x=1"]), Ok(vec![some("/x=1")]));
        for (models, adapters) in [(&["a", "b"], &["x"][..]), (&["a", "b"], &["c=x"]), (&["a", "b"], &["a="])]
        {
            let error = attach(models, adapters).unwrap_err();
            assert!(error.contains("say --adapter NAME=DIR"), "{error}");
        }
        assert!(attach(&["a"], &["x", "y"]).unwrap_err().contains("two adapters"));
    }
}
