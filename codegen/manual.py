"""What ``--help`` says: of the generator, and of every verb with an example that can be pasted."""

DESCRIPTION = """\
Reads a schema file (schema/README.md is its grammar) and writes everything that repeats a signature: C prototypes and checks, the
torch registration, the Python module with its stub, the reference."""

EPILOG = """\
an operator, in ten lines of a schema file:
  ## y = scale * x, element by element.
  x: f32 | bf16 [n]
  y: like x, out
  scale: > 0                     # a value contract; `any` allows everything
  @backends ref
  scaled(Tensor x, Tensor(y!) y, int scale=1) -> ()

a day with it:
  python -m codegen new scaled                      a schema entry, a kernel, and a test that fails until the kernel is right
  python -m codegen watch                           generate whenever the schema is saved
  python -m codegen explain scaled                  what C, torch and Python get from it
  python -m codegen fmt && python -m codegen lint   one form, and what is likely to hurt
  python -m codegen breaking --against v1.2.0       what the edits since then do to callers, and which release they ask for
  python -m codegen check                           in CI: the outputs are what generate would write

stricter than torch: what torch's parser takes and then goes wrong is an error (`parse --as-torch` takes it): duplicate names,
keywords of C, C++ and Python, defaults of another type or length, hexadecimal numbers, `1E5`, marks on what is no tensor, wildcard
alias sets, `...`, type variables, types that C cannot carry. `explain DG0201` to `explain DG0219` say why, one by one.

colour: on a terminal, unless NO_COLOR is set; everywhere, when FORCE_COLOR is set.

exit status: 0 all is well; 1 the schema has errors, or check, fmt --check, lint or breaking found something; 2 the generator itself
failed."""

DESCRIPTIONS = {
    "generate": "Writes the outputs that changed below --out, and removes what no longer belongs there. Files without the generator's banner are"
    " left alone.",
    "check": "Says whether generate would change anything: the diff, and as the last line the command that mends it. Writes nothing.",
    "watch": "Generates, and does so again whenever the schema is saved. A schema with errors leaves the outputs as they are.",
    "fmt": "Lays out the schema file in its one form: blanks, blank rows, long rows, the column of comments. Comments, documentation and\n"
    "meaning stay as they are. `--schema -` reads standard input and writes standard output, as editors like it.",
    "lint": "Warns of signatures that are correct and yet likely to hurt somebody. An operator may break a rule for a reason:\n"
    "  @lint allow boolean-trap: the signature is that of the library that this one replaces",
    "breaking": "Compares the schema with another version of it and says, edit by edit and host by host, what becomes of callers: C programs that\n"
    "are compiled (C ABI) and compiled again (C source, C++ source), torch programs of the past (backward), for older releases (forward)\n"
    "and in C++ (typed handles of the dispatcher), Python callers, type checkers (stub), and all of them through the contracts (behaviour).\n"
    "Proposes the next release.",
    "explain": "Prints all that follows from an operator (schema, contract, C prototype and options, Python signature, fake kernel, messages), or the\n"
    "page of a diagnostic or lint rule.",
    "new": "Adds an operator, and asks nothing: an entry at the end of the schema file, a kernel, and a test with a reference that fails until\n"
    "the kernel is right. Skeletons in a folder new/ beside the schema file take the place of the generator's own.",
    "runtime": "Writes the sources that the generated files of the given hosts call (tensors, contexts, checks, the glue of a host), under the names\n"
    "of the library, and prints their paths. A build compiles them into the library; the CMake function opschema_generate() does so.",
    "init": "Starts a library in a new folder: a schema with one operator, its kernel and test, the runtime that generated checks call, a build\n"
    "file. It builds and passes its test at once.",
    "json": "Prints the model of the schema file. `format` grows when the meaning of a field changes; --json-schema describes the rest.",
    "samples": "Writes a program in C that calls every operator as its contract allows, and then with one thing wrong after the other: each call must\n"
    "give the status and the message that the contract says, and write nothing that it may not. Without a kernel for a right call there\n"
    "must be the refusal of `@backends none`. The same seed gives the same calls everywhere. What the contracts do not say, chiefly what\n"
    "lies in tensors of integers, says the function adjust(call, source) of --adjust.",
    "parse": "Reads schema strings as JSON, one a line; prints what they mean, one JSON object a line.",
    "completion": "Prints the completions of a command that runs `python -m codegen`, for a shell.",
}

EPILOGS = {
    "generate": "example:\n  python -m codegen generate --schema my/ops.schema --out my/generated --hosts c,docs",
    "check": "example, as a step of CI:\n  python -m codegen check --diagnostics=json > codegen.sarif",
    "watch": "example:\n  python -m codegen watch --schema my/ops.schema --out my/generated",
    "fmt": "examples:\n  python -m codegen fmt\n  python -m codegen fmt --check",
    "lint": "examples:\n  python -m codegen lint\n  python -m codegen lint --rules",
    "breaking": "examples:\n"
    "  python -m codegen breaking --against HEAD\n"
    "  python -m codegen breaking --against old/ops.schema --fail-on minor\n"
    "  python -m codegen breaking --against installed --exit-code",
    "explain": "examples:\n  python -m codegen explain DG0203\n  python -m codegen explain boolean-trap",
    "new": "example:\n  python -m codegen new scaled\n\nThen write the formula into the kernel and into the reference of the test.",
    "init": "example:\n  python -m codegen init wave && cmake -S wave -B wave/build && cmake --build wave/build && ctest --test-dir wave/build",
    "runtime": "example:\n  python -m codegen runtime --schema my/ops.schema --out build/runtime --hosts c",
    "json": "example:\n  python -m codegen json | python -c 'import json, sys; print(len(json.load(sys.stdin)[\"operators\"]))'",
    "samples": "example:\n  python -m codegen samples --seed 7 --out calls.c && cc -Iinclude calls.c -lwave -o calls && ./calls",
    "parse": "example:\n  echo '\"f(Tensor x, int n=1) -> Tensor\"' | python -m codegen parse",
    "completion": "examples:\n"
    "  alias codegen='python -m codegen'; source <(codegen completion bash)\n"
    "  codegen completion zsh > ~/.zfunc/_codegen\n"
    "  codegen completion fish > ~/.config/fish/completions/codegen.fish",
}
