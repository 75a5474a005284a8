"""The table of languages: what a file is written in, by its name or its first line.

The identifiers are those of the Language Server Protocol where it has one. Content beyond the
first line is not looked at.
"""

import re
from collections.abc import Mapping
from functools import cache

from aish.core.frozen import frozen

PLAIN = "plaintext"
FIRST_LINE = 512
"""Bytes of a first line that are looked at."""


@frozen
class Language:
    """A language: extensions with their dot, whole file names, and programs of `#!` lines."""

    id: str
    name: str
    extensions: tuple[str, ...] = ()
    filenames: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _language(id: str, name: str, extensions: str, names: str = "", programs: str = "") -> Language:
    return Language(id, name, _words(extensions), _words(names), _words(programs))


LANGUAGES: tuple[Language, ...] = (
    _language("abap", "ABAP", ".abap"),
    _language("ada", "Ada", ".adb .ads .ada"),
    _language("apacheconf", "Apache configuration", ".htaccess", ".htaccess apache2.conf"),
    _language("asciidoc", "AsciiDoc", ".adoc .asciidoc .asc"),
    _language("asm", "Assembly", ".asm .s .S .nasm"),
    _language("astro", "Astro", ".astro"),
    _language("awk", "AWK", ".awk .gawk", "", "awk gawk mawk nawk"),
    _language("bat", "Batch file", ".bat .cmd"),
    _language("bibtex", "BibTeX", ".bib"),
    _language("blade", "Blade", ".blade.php"),
    _language("c", "C", ".c .h .h.in"),
    _language("clojure", "Clojure", ".clj .cljs .cljc .edn", "", "bb clojure"),
    _language("cmake", "CMake", ".cmake .cmake.in", "CMakeLists.txt"),
    _language("cobol", "COBOL", ".cob .cbl .cobol .cpy"),
    _language("coffeescript", "CoffeeScript", ".coffee", "Cakefile", "coffee"),
    _language(
        "cpp",
        "C++",
        ".cc .cpp .cxx .c++ .C .hpp .hh .hxx .h++ .H .ipp .inl .tpp .txx .ixx .cppm .hpp.in",
    ),
    _language("crystal", "Crystal", ".cr", "", "crystal"),
    _language("csharp", "C#", ".cs .csx .cake"),
    _language("css", "CSS", ".css"),
    _language("csv", "CSV", ".csv .tsv"),
    _language("cuda-cpp", "CUDA C++", ".cu .cuh"),
    _language("d", "D", ".d .di", "", "rdmd"),
    _language("dart", "Dart", ".dart", "", "dart"),
    _language("diff", "Diff", ".diff .patch .rej"),
    _language("dockerfile", "Dockerfile", ".dockerfile", "Dockerfile Containerfile"),
    _language("dotenv", "Environment file", ".env", ".env .envrc .flaskenv"),
    _language("eiffel", "Eiffel", ".e"),
    _language("elixir", "Elixir", ".ex .exs", "mix.lock", "elixir"),
    _language("elm", "Elm", ".elm"),
    _language("erb", "Embedded Ruby", ".erb .html.erb .rhtml"),
    _language("erlang", "Erlang", ".erl .hrl .app.src", "rebar.config", "escript"),
    _language("fish", "Fish", ".fish", "", "fish"),
    _language("fortran", "Fortran", ".f .for .f77 .f90 .f95 .f03 .f08 .F .F90"),
    _language("fsharp", "F#", ".fs .fsi .fsx"),
    _language("gdscript", "GDScript", ".gd"),
    _language("git-commit", "Git commit message", "", "COMMIT_EDITMSG MERGE_MSG"),
    _language("gitattributes", "Git attributes", "", ".gitattributes"),
    _language("gitconfig", "Git configuration", ".gitconfig", ".gitconfig .gitmodules"),
    _language("gleam", "Gleam", ".gleam"),
    _language("glsl", "GLSL", ".glsl .vert .frag .geom .comp .tesc .tese"),
    _language("go", "Go", ".go"),
    _language("go.mod", "Go module", "", "go.mod go.work"),
    _language("go.sum", "Go checksums", "", "go.sum go.work.sum"),
    _language("graphql", "GraphQL", ".graphql .gql .graphqls"),
    _language("groovy", "Groovy", ".groovy .gvy .gradle", "Jenkinsfile", "groovy"),
    _language("haml", "Haml", ".haml"),
    _language("handlebars", "Handlebars", ".hbs .handlebars"),
    _language("haskell", "Haskell", ".hs .lhs .hsc", "", "runghc runhaskell stack"),
    _language("haxe", "Haxe", ".hx .hxml"),
    _language("hcl", "HCL", ".hcl .nomad"),
    _language("hlsl", "HLSL", ".hlsl .fx"),
    _language("html", "HTML", ".html .htm .xhtml"),
    _language(
        "ignore",
        "Ignore file",
        "",
        ".gitignore .dockerignore .npmignore .eslintignore .prettierignore .hgignore .helmignore",
    ),
    _language(
        "ini",
        "INI",
        ".ini .cfg .inf .desktop .service .timer .socket .mount",
        ".editorconfig .npmrc .pylintrc .flake8 .coveragerc",
    ),
    _language("java", "Java", ".java .jav", "", "java"),
    _language("javascript", "JavaScript", ".js .mjs .cjs .es6", "Jakefile", "node nodejs bun"),
    _language("javascriptreact", "JavaScript JSX", ".jsx"),
    _language("jinja", "Jinja", ".jinja .jinja2 .j2"),
    _language(
        "json",
        "JSON",
        ".json .geojson .webmanifest .har .avsc .topojson",
        "composer.lock Pipfile.lock .watchmanconfig",
    ),
    _language("json5", "JSON5", ".json5"),
    _language(
        "jsonc",
        "JSON with comments",
        ".jsonc .code-workspace .code-snippets",
        "tsconfig.json jsconfig.json .eslintrc.json .babelrc .jshintrc devcontainer.json",
    ),
    _language("jsonl", "JSON lines", ".jsonl .ndjson"),
    _language("jsonnet", "Jsonnet", ".jsonnet .libsonnet"),
    _language("julia", "Julia", ".jl", "", "julia"),
    _language("just", "Just", ".just", "justfile .justfile"),
    _language("kotlin", "Kotlin", ".kt .kts", "", "kotlin"),
    _language("latex", "LaTeX", ".tex .latex .ltx"),
    _language("less", "Less", ".less"),
    _language("lisp", "Lisp", ".lisp .lsp .cl .el .asd", ".emacs", "sbcl clisp ecl emacs"),
    _language("liquid", "Liquid", ".liquid"),
    _language("log", "Log", ".log"),
    _language("lua", "Lua", ".lua .rockspec", ".luacheckrc", "lua luajit"),
    _language(
        "makefile",
        "Makefile",
        ".mk .mak .make",
        "Makefile GNUmakefile BSDmakefile Makefile.am Makefile.in Kbuild",
        "make gmake",
    ),
    _language("markdown", "Markdown", ".md .markdown .mdown .mkd .mdwn"),
    _language("matlab", "MATLAB", ".matlab .mlx"),
    _language("mdx", "MDX", ".mdx"),
    _language("mermaid", "Mermaid", ".mmd .mermaid"),
    _language("meson", "Meson", "", "meson.build meson_options.txt meson.options"),
    _language("mojo", "Mojo", ".mojo", "", "mojo"),
    _language("nginx", "nginx configuration", ".nginx .nginxconf", "nginx.conf"),
    _language("nim", "Nim", ".nim .nims .nimble", "", "nim"),
    _language("ninja", "Ninja", ".ninja"),
    _language("nix", "Nix", ".nix"),
    _language("objective-c", "Objective-C", ".m"),
    _language("objective-cpp", "Objective-C++", ".mm"),
    _language("ocaml", "OCaml", ".ml .mli .mll .mly", "", "ocaml ocamlrun"),
    _language("odin", "Odin", ".odin"),
    _language("org", "Org", ".org"),
    _language("pascal", "Pascal", ".pas .pp .dpr .lpr", "", "instantfpc"),
    _language("perl", "Perl", ".pl .pm .t .pod", "cpanfile", "perl"),
    _language("php", "PHP", ".php .phtml .php5 .phps", "", "php"),
    _language("powershell", "PowerShell", ".ps1 .psm1 .psd1", "", "pwsh powershell"),
    _language("prisma", "Prisma", ".prisma"),
    _language("prolog", "Prolog", ".pro .prolog", "", "swipl"),
    _language("properties", "Properties", ".properties", "gradle.properties"),
    _language("proto3", "Protocol Buffers", ".proto"),
    _language("pug", "Pug", ".pug .jade"),
    _language("puppet", "Puppet", ".epp", "Puppetfile"),
    _language("purescript", "PureScript", ".purs"),
    _language(
        "python",
        "Python",
        ".py .pyi .pyw .pyx .pxd .gyp .gypi",
        "SConstruct SConscript wscript Snakefile",
        "python pypy uv ipython",
    ),
    _language("qml", "QML", ".qml"),
    _language("r", "R", ".r .R .rmd .Rmd", ".Rprofile", "Rscript"),
    _language("racket", "Racket", ".rkt", "", "racket"),
    _language("razor", "Razor", ".cshtml .razor"),
    _language("pip-requirements", "pip requirements", "", "requirements.txt constraints.txt"),
    _language("restructuredtext", "reStructuredText", ".rst .rest"),
    _language(
        "ruby",
        "Ruby",
        ".rb .rake .gemspec .ru .rbi",
        "Gemfile Rakefile Vagrantfile Podfile Brewfile Fastfile Guardfile Capfile Berksfile",
        "ruby jruby rake",
    ),
    _language("rust", "Rust", ".rs .rs.in", "", "rust-script"),
    _language("sass", "Sass", ".sass"),
    _language("scala", "Scala", ".scala .sc .sbt", "", "scala scala-cli"),
    _language("scheme", "Scheme", ".scm .ss .sld", "", "guile csi"),
    _language("scss", "SCSS", ".scss"),
    _language(
        "shellscript",
        "Shell script",
        ".sh .bash .zsh .ksh .bats .ebuild",
        ".bashrc .bash_profile .bash_aliases .bash_logout .profile .zshrc .zprofile .zshenv .zlogin"
        " .kshrc PKGBUILD APKBUILD",
        "sh bash zsh ksh dash ash mksh bats",
    ),
    _language("slint", "Slint", ".slint"),
    _language("smalltalk", "Smalltalk", ".st"),
    _language("solidity", "Solidity", ".sol"),
    _language("sql", "SQL", ".sql .ddl .dml .psql .pgsql .plsql"),
    _language("starlark", "Starlark", ".bzl .star .bazel", "BUILD WORKSPACE BUILD.bazel Tiltfile"),
    _language("stylus", "Stylus", ".styl"),
    _language("svelte", "Svelte", ".svelte"),
    _language("swift", "Swift", ".swift", "", "swift"),
    _language("systemverilog", "SystemVerilog", ".sv .svh"),
    _language("tcl", "Tcl", ".tcl .tk", "", "tclsh wish expect"),
    _language("terraform", "Terraform", ".tf .tfvars .tofu"),
    _language("textile", "Textile", ".textile"),
    _language("thrift", "Thrift", ".thrift"),
    _language("toml", "TOML", ".toml", "Cargo.lock poetry.lock uv.lock pdm.lock Pipfile"),
    _language("twig", "Twig", ".twig"),
    _language(
        "typescript", "TypeScript", ".ts .mts .cts .d.ts .d.mts .d.cts", "", "deno ts-node tsx"
    ),
    _language("typescriptreact", "TypeScript JSX", ".tsx"),
    _language("typst", "Typst", ".typ"),
    _language("vala", "Vala", ".vala .vapi"),
    _language("vb", "Visual Basic", ".vb .vbs .bas"),
    _language("verilog", "Verilog", ".v .vh"),
    _language("vhdl", "VHDL", ".vhd .vhdl"),
    _language("viml", "Vim script", ".vim .vimrc", ".vimrc .gvimrc _vimrc", "vim nvim"),
    _language("vue", "Vue", ".vue"),
    _language("wat", "WebAssembly text", ".wat .wast"),
    _language("wgsl", "WGSL", ".wgsl"),
    _language(
        "xml",
        "XML",
        ".xml .xsd .rng .svg .xaml .csproj .vcxproj .fsproj .props .targets .plist .wsdl .rss .atom"
        " .nuspec .resx .storyboard .ui .qrc .gpx .kml",
        "pom.xml web.config nuget.config",
    ),
    _language("xquery", "XQuery", ".xq .xquery .xqy"),
    _language("xsl", "XSLT", ".xsl .xslt"),
    _language(
        "yaml",
        "YAML",
        ".yaml .yml .yaml.in .cff",
        ".clang-format .clang-tidy .clangd .gemrc .yamllint pnpm-lock.yaml",
    ),
    _language("zig", "Zig", ".zig .zon"),
    _language(PLAIN, "Plain text", ".txt .text", "LICENSE README AUTHORS COPYING NOTICE TODO"),
)


def language_of(name: str, first_line: bytes | None) -> tuple[str, str]:
    """The identifier of a file's language, and what says so.

    That is `filename`, `extension`, `first_line` or, where nothing is known, `default`. What
    decides is the whole name (`Dockerfile`), the longest extension (`.d.ts`), then a `#!` line.

    Args:
        name: The file's name; folders before it are left out.
        first_line: The first bytes of the file; `None` if they are not known.
    """
    base = name.rstrip("/").rpartition("/")[2]
    names, extensions, programs = _tables()
    if language := names.get(base) or names.get(base.casefold()):
        return language, "filename"
    dot = base.find(".", 1)
    while dot > 0:
        extension = base[dot:]
        if language := extensions.get(extension) or extensions.get(extension.casefold()):
            return language, "extension"
        dot = base.find(".", dot + 1)
    if first_line is not None and (language := programs.get(program_of(first_line))):
        return language, "first_line"
    return PLAIN, "default"


_VERSION = re.compile(r"-?[0-9][0-9.]*$")
_WITH_VALUE = frozenset({"-u", "--unset", "-C", "--chdir"})


def program_of(first_line: bytes) -> str:
    """The program that a `#!` line names, without folders and version; empty if there is none."""
    line = first_line[:FIRST_LINE].split(b"\n", 1)[0].removeprefix(b"\xef\xbb\xbf")
    if not line.startswith(b"#!"):
        return ""
    words = line[2:].decode("utf-8", "replace").split()
    program = words[0].rpartition("/")[2] if words else ""
    if program == "env":
        program = _program_of_env(words[1:])
    return _VERSION.sub("", program)


def _program_of_env(words: list[str]) -> str:
    """The program that `env` starts: the first word that is no option and no assignment."""
    skipped = False
    for word in words:
        if skipped or word in _WITH_VALUE:
            skipped = not skipped
        elif word.startswith("-S") and len(word) > len("-S"):
            return word[2:].rpartition("/")[2]
        elif not word.startswith("-") and "=" not in word:
            return word.rpartition("/")[2]
    return ""


@cache
def _tables() -> tuple[Mapping[str, str], Mapping[str, str], Mapping[str, str]]:
    """Identifiers by whole name, by extension and by program; a spelling as it is comes first."""
    names: dict[str, str] = {}
    extensions: dict[str, str] = {}
    programs: dict[str, str] = {}
    for language in LANGUAGES:
        names.update(dict.fromkeys(language.filenames, language.id))
        extensions.update(dict.fromkeys(language.extensions, language.id))
        programs.update(dict.fromkeys(language.programs, language.id))
    for table in (names, extensions):
        for spelling, found in tuple(table.items()):
            table.setdefault(spelling.casefold(), found)
    return names, extensions, programs
