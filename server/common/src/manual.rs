//! The subcommand `manual`: man pages and shell completions of a program, from the definition of its command
//! line.
//!
//! In: the definition, and a directory such as `/usr/local/share`.
//! Out: files at the paths below it where man, bash, zsh and fish expect them.

use std::fs;
use std::io;
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

#[derive(Debug, Clone, Args)]
pub struct ManualArgs {
    /// Folder to write below, such as /usr/local/share or ~/.local/share
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

impl ManualArgs {
    /// # Errors
    /// A file or folder cannot be written.
    pub fn write(&self, mut command: Command) -> io::Result<()> {
        let name = command.get_name().to_owned();
        // `help COMMAND` needs no separate page.
        let pages = command.clone().disable_help_subcommand(true);
        for (shell, below) in [
            (Shell::Bash, "bash-completion/completions"),
            (Shell::Zsh, "zsh/site-functions"),
            (Shell::Fish, "fish/vendor_completions.d"),
        ] {
            clap_complete::generate_to(shell, &mut command, &name, self.create_folder(below)?)?;
        }
        clap_mangen::generate_to(pages, self.create_folder("man/man1")?)
    }

    fn create_folder(&self, below: &str) -> io::Result<PathBuf> {
        let folder = self.folder.join(below);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::*;

    #[test]
    fn each_shell_and_man_find_the_flags_where_they_look() {
        let folder = tempfile::tempdir().unwrap();
        let command =
            Command::new("tool").subcommand(Command::new("cut").arg(Arg::new("depth").long("depth")));
        ManualArgs { folder: folder.path().to_owned() }.write(command).unwrap();
        for (file, flag) in [
            ("bash-completion/completions/tool.bash", "--depth"),
            ("zsh/site-functions/_tool", "--depth"),
            ("fish/vendor_completions.d/tool.fish", "-l depth"),
            ("man/man1/tool.1", "tool\\-cut(1)"),
            ("man/man1/tool-cut.1", "\\-\\-depth"),
        ] {
            let text = fs::read_to_string(folder.path().join(file)).unwrap();
            assert!(text.contains(flag), "{file}: {text}");
        }
        assert_eq!(fs::read_dir(folder.path().join("man/man1")).unwrap().count(), 2);
    }
}
