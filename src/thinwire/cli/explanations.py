"""Every kind of error in plain words: what it means, what usually causes it, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EXPLANATIONS", "Explanation"]


@dataclass(frozen=True)
class Explanation:
    """One code; `causes` and `ways_out` in the order of their likelihood."""

    means: str
    causes: tuple[str, ...]
    ways_out: tuple[str, ...]


def _of(means: str, causes: tuple[str, ...], *ways_out: str) -> Explanation:
    return Explanation(means, causes, ways_out)


_OF_DATA = {
    "bad-input": _of(
        "Something you gave is wrong, and nothing was started. The message names the field, file, row or party.",
        ("a field that does not fit another one", "an option of the command that does not fit the job"),
        "do what the message says after its semicolon",
        "`thinwire check JOB.toml` looks at everything without running it",
    ),
    "bad-job": _of(
        "The job file has a key that does not exist, a value of the wrong type, or lacks a field.",
        (
            "a misspelt key: the nearest one is suggested",
            "a number in quotes",
            "a key in another section than its own",
        ),
        "docs/jobs.md lists every key with its meaning",
        "`thinwire init` writes a whole job file with comments",
    ),
    "bad-file": _of(
        "A file of data is not there, is empty or damaged, or is not of a kind that is read.",
        ("a path that does not start from the job file's folder", "an export that did not end", "a spreadsheet"),
        "paths in a job file start from the folder of the job file",
        "save tables as CSV (UTF-8) or Parquet, arrays with numpy.savez",
    ),
    "bad-table": _of(
        "A table cannot be read as a whole: first line, delimiter, encoding, or a line of another length.",
        ("semicolons instead of commas", "no line with the columns' names", "a comma inside a cell without quotes"),
        'say delimiter = ";" beside the file, or save it with commas',
        "save it as UTF-8, with a first line that names the columns",
    ),
    "bad-column": _of(
        "A column is not there, or holds what it must not.",
        ("a misspelt name", "text among numbers, such as '?' or '27,5'", "test rows with other columns"),
        "correct the cell that is named by its line",
        'say what the column is: prepare = { types = { zip = "category" } }, or missing_words = ["?"]',
        "leave the column out: all_but = [...]",
    ),
    "bad-ids": _of(
        "The rows' ids are missing, are there twice, or are not those that were aligned.",
        ("two rows about one customer", "a table that was exported again after the alignment"),
        "bring every id to one row, in each party's own table",
        "align again: `thinwire align JOB.toml`",
    ),
    "bad-labels": _of(
        "The labels cannot be learned: all are of one class, or a row is of a class that no training row has.",
        ("the wrong column", "very few rows of a class, all of them kept back for testing", "a slip in one cell"),
        "look at the column that label_party.labels names",
        "merge rare classes, or use another key in job.split",
    ),
    "bad-parameter": _of(
        "A parameter of a compressor, method, model or job is out of its range or of the wrong type.",
        ("a share above 1 or of 0", "a fraction where a whole number belongs"),
        "the message names the range",
        "`thinwire methods` and `thinwire compressors` list parameters with their defaults",
    ),
    "bad-tensor": _of(
        "A tensor has the wrong type, shape, size or range.",
        ("features and labels of different lengths", "class numbers that do not begin at 0"),
        "compare the shapes in the message with those of your arrays",
    ),
    "not-finite": _of(
        "A tensor holds NaN or infinity.",
        ("gaps in the features", "a step size so large that training left the numbers"),
        "let the party prepare its table, which fills gaps: prepare = {}",
        "use a smaller lr",
    ),
    "incompatible-recipe": _of(
        "Two parts of the recipe cannot work together.",
        (
            "a secure sum of symbols that do not add",
            "a guarantee for rows, with a model or a scaling that looks across rows",
        ),
        "the message says what to use instead",
        "docs/jobs.md says what goes with what",
    ),
    "bad-state": _of(
        "Something saved does not fit what is to load it.",
        ("a run directory of another job", "a file that was changed by hand, or written by another version"),
        "give the job that the run began with, or another --out",
    ),
    "bad-certificate": _of(
        "A certificate, a key or a list of revoked ones cannot be used.",
        ("it has expired", "the key may be read by others", "a file of another party"),
        "`thinwire certs DIR --party NAME` makes new ones",
        "chmod 600 the key",
    ),
    "bad-key": _of(
        "A run's folder is encrypted, and the key that opens it is missing, is another one, or cannot be used.",
        (
            "the key file was moved: the folder remembers where it was",
            "the key of another run",
            "others than its owner may read the file",
        ),
        "say where the key is: THINWIRE_KEY=FILE before the command, or [encryption] key in the job file",
        "chmod 600 the key file",
        "a key that is lost cannot be made again, nor can what it encrypts; `thinwire key FILE` is for new runs",
    ),
    "damaged-file": _of(
        "An encrypted file of a run is not what was written in its place, so nothing of it is used.",
        ("a file that was changed, cut off, or copied from another run", "encryption.json was removed"),
        "bring the whole folder back from a copy of one moment",
        "begin a new run with another --out",
    ),
    "already-running": _of(
        "Another process works in this run's folder.",
        ("the command was started twice",),
        "wait for the other one, or end it by the process number in the message",
        "give another --out",
    ),
}

_OF_RUNS = {
    "export-failed": _of(
        "A model could not be written in another format, or what was written gives other numbers than the model.",
        ("a model of your own that branches on its data or on the number of rows", "an operation the format lacks"),
        "try another format: --to exported-program, onnx or torchscript",
        "write the branch with torch.where, and sizes with x.shape[0] instead of len(x)",
    ),
    "failed": _of(
        "A run that had begun could not go on; what it saved is kept.",
        ("an input that showed its fault only during training",),
        "remove the cause, then go on with --resume",
    ),
    "failed-in-run": _of(
        "What was given turned out to be wrong only after the start, at one of the parties.",
        ("a model of one's own that fails on some rows",),
        "remove the cause at the party that is named, and start every party's command again",
    ),
    "diverged": _of(
        "The loss is no number any more: training left the floats.",
        ("a step size that is too large", "features on very different scales", "a very coarse compressor"),
        "use a smaller lr, or adam",
        "bring columns to a like scale: prepare = {}",
        "use a finer compressor",
    ),
    "surrogates-differ": _of(
        "The two ends of an error-feedback stream no longer hold the same surrogate.",
        ("parties on different platforms or versions", "a checkpoint of one party that is older than the other's"),
        "resume both parties from their last common checkpoint",
    ),
    "budget-exceeded": _of(
        "The next use of some rows would cost more than the privacy budget leaves. It was not made.",
        ("more evaluations or predictions than planned", "a retry that had to draw noise again"),
        "what was trained so far is yours to use",
        "a larger job.budget has to be agreed on by all parties before a new run",
    ),
    "bad-signature": _of(
        "A party's key for the secure sum is not signed by that party. Nothing was sent to it.",
        ("a wrong certificate", "somebody between the parties"),
        "check the certificates of both parties before you start again",
    ),
    "aborted": _of(
        "A party ended the run for all.",
        ("`thinwire abort`",),
        "ask the party that is named; start a new run with another --out",
    ),
    "interrupted": _of(
        "SIGTERM or Ctrl-C came, and the round could not be ended in time.",
        ("the machine shuts down", "a peer that did not answer"),
        "start the command again: it goes on from its checkpoint",
    ),
    "replaced": _of(
        "A newer process of this party has begun, so this one ends. Nothing is counted twice.",
        ("the command was started again while the old process was stopped",),
        "nothing: the newer one goes on",
    ),
    "write-failed": _of(
        "The system refused to write a file; what was there before is whole.",
        ("a full disk", "a folder that may not be written"),
        "free the space, or the folder, that the message names; then start the command again",
    ),
    "checkpoint-failed": _of(
        "A checkpoint could not be written; the one before it is whole.",
        ("a full disk",),
        "free space; a run that is still going tries again by itself",
    ),
    "log-failed": _of(
        "A message could not be written down before it was to be sent, so it was not sent.",
        ("a disk that fails", "a folder that was taken away"),
        "look at the disk, then start the command again",
    ),
    "damaged-log": _of(
        "Records of messages that were sent are not what they were, or are gone.",
        ("a copied or edited run folder", "a disk that lies about what it has written"),
        "bring the folder back from a copy, or begin a new run with another --out",
    ),
    "bench-failed": _of(
        "A measurement ended without a result.", ("a process that ended early",), "run it again with --debug"
    ),
    "link-failed": _of(
        "A shaped link, or a party on it, could not be started or ended badly.",
        ("network namespaces need root",),
        "run it as root, or without the real link",
    ),
}

_OF_ALIGNMENT = {
    "no-overlap": _of(
        "Not one id is held by all parties.",
        ("ids are written differently: 007 and 7, capitals, a prefix", "another column at one party"),
        "compare how two known ids are written at each party; spaces around them do not matter",
    ),
    "too-little-overlap": _of(
        "Fewer ids are in common than some party asks for. Nobody was told which.",
        ("--min-overlap is higher than the tables allow", "ids of one part are written differently"),
        "look at how ids are written, or agree on a lower --min-overlap",
    ),
    "alignments-differ": _of(
        "The rows of these parties do not fit the label party's; none of them may be used.",
        ("one party aligned again, the others did not",),
        "run `thinwire align` again at all parties",
    ),
    "workers-failed": _of(
        "A worker process could not start, or was ended by the system.",
        ("too little memory",),
        "use fewer: --workers 1",
    ),
}

_OF_NETWORKS = {
    "transport-error": _of(
        "A message cannot be sent or received as asked.",
        ("a peer of another version",),
        "`thinwire doctor` looks at the way between the parties",
    ),
    "timed-out": _of(
        "A peer's message did not come in time; the message says whose, and which.",
        ("the peer is slow or gone", "a link that drops"),
        "look at the peer's own log; the run can be resumed",
    ),
    "party-missing": _of(
        "A peer has been gone, or silent, for longer than network.wait_seconds.",
        ("its command was not started", "a firewall"),
        "start this command again when the party is back: it goes on from its checkpoint",
        "`thinwire doctor JOB.toml --name NAME` says what is in the way",
    ),
    "stopped": _of(
        "This program was stopped from outside; it did nothing wrong itself.",
        ("another party of the same process failed",),
        "look at the first error",
    ),
    "told-to-stop": _of(
        "A peer cannot go on, and nobody can without it.",
        ("the peer's own error, which its log names",),
        "ask the party that is named; then start the command again",
    ),
    "deadlock": _of(
        "In the simulator nobody can move: everyone waits for somebody else.",
        ("a program of one's own that sends too little",),
        "the message lists who waits for what",
    ),
    "unreached": _of(
        "Nobody answered at the label party's address.",
        ("its command was not started yet", "a wrong host or port", "a firewall"),
        "check network.address; the command keeps trying for network.wait_seconds",
    ),
    "handshake-failed": _of(
        "Somebody answered, but the two certificates do not agree; or there is no such host.",
        ("certificates of two authorities", "a certificate of another name", "another service at that port"),
        "compare ca.pem at both parties; `thinwire doctor` names the cause",
    ),
    "unreachable": _of(
        "The peer needs messages that our log does not hold any more.",
        ("a run folder that was brought back from an older copy",),
        "bring back both parties' folders of one time, or begin a new run",
    ),
    "wrong-message": _of(
        "The peer's next message is not the one that is expected here.",
        ("parties of different versions", "a run folder of another run"),
        "use one version everywhere; begin a new run with another --out",
    ),
    "denied": _of(
        "The caller is not who it must be; its call changed nothing.",
        ("a certificate of another party", "a revoked certificate"),
        "check which certificate the caller uses",
    ),
    "refused": _of(
        "A party may call, but cannot take part as it is; trying again will not help.",
        ("its recipe, rows or widths differ from ours; the message names the field",),
        "bring the two job files to the same meaning",
    ),
    "not-yet": _of(
        "A party may take part, but not now.",
        ("the other side is still starting",),
        "nothing: it tries again by itself",
    ),
    "run-aborted": _of(
        "A party ended this run for all, for good.",
        ("`thinwire abort`",),
        "start a new run with another --out",
    ),
    "trouble": _of(
        "The label party cannot be met.",
        ("address, port, firewall or certificates",),
        "`thinwire doctor` lists what it tried, and the first thing that failed",
    ),
}

_OF_THE_WIRE = {
    "wire-error": _of(
        "Bytes that came are not what the format says.",
        ("a peer of another version", "a damaged message"),
        "use one version at all parties",
    ),
    "truncated": _of("A message ends too early.", ("a damaged message",), "use one version at all parties"),
    "trailing-bytes": _of(
        "A message goes on after its end.", ("a damaged message",), "use one version at all parties"
    ),
    "unknown-tag": _of(
        "A message of a kind, coding or version that this build does not know.",
        ("the peer runs a newer version",),
        "use one version at all parties",
    ),
    "too-large": _of(
        "A message announces more than the receiver allows.",
        ("network.max_message_mb is too small for the job",),
        "leave network.max_message_mb out: it follows from the job",
    ),
    "malformed": _of(
        "A count, order, range or checksum in a message cannot be.",
        ("a damaged message", "a peer that does not follow the format"),
        "use one version at all parties; look who sends",
    ),
}

_OF_ANSWERS = {
    "question-failed": _of(
        "A feature party was asked for its half of a score and gave none.",
        ("the party is away, late, or holds another model; the message says which",),
        "ask again once the party that is named runs `thinwire serve` or `thinwire predict`",
    ),
    "party-away": _of(
        "A party whose half of the model is needed is not connected.",
        ("its process has ended", "the line to it is cut"),
        "start it again: it is found by itself",
        'where answers without it are of use, let it state serve = { when_missing = "mean" } in its section',
    ),
    "not-connected": _of(
        "There is no line to the peer at this moment.",
        ("it has not started yet, or was lost",),
        "nothing: the line comes back by itself once the peer is there",
    ),
    "party-failed": _of(
        "A party could not answer, for a reason that only its own log tells.",
        ("its features for these rows cannot be read",),
        "ask that party to look into its log",
    ),
    "no-answer": _of(
        "A party's answer did not come in time.",
        ("a slow link or a busy machine", "a deadline that is too short"),
        "state a longer deadline, or ask for fewer rows",
    ),
    "late": _of(
        "The request's deadline came before all parties had answered.",
        ("a slow party", "more requests than can be answered"),
        "state a longer deadline, or send fewer requests at a time",
    ),
    "busy": _of(
        "More requests wait than can be answered.",
        ("too many clients at once",),
        "try again a little later, or put more rows into one request",
    ),
    "bad-request": _of(
        "A request is wrong in itself; nothing was asked of anybody.",
        ("a field of the wrong type", "too many rows or bytes"),
        "/openapi.json says what a request looks like",
    ),
    "requests-failed": _of(
        "Some requests of a load test had no good answer.",
        ("the server was busy, or a party away",),
        "the table counts them by kind; `thinwire explain` knows these kinds too",
    ),
    "unknown-id": _of(
        "No row of this party has this id.",
        ("a typing error", "a new customer, whose features no party has loaded"),
        "give new rows with --features and --ids; they are aligned first",
    ),
    "outside-alignment": _of(
        "This party knows the id, but not all others do, so that there is no score.",
        ("an id outside the intersection",),
        "leave it out, or align again once all parties have it",
    ),
    "model-mismatch": _of(
        "Parties hold models of different runs.",
        ("a new model that not all have taken over yet", "the wrong run's folder"),
        "give every party the folder of the same run",
    ),
    "budget-spent": _of(
        "A prediction would cost a row more privacy than its party's budget allows.",
        ("earlier training, evaluations and predictions used it up",),
        "no further answers about this row: that is what the budget is for",
    ),
    "asked-before": _of(
        "A question's number was used before; its noise and masks would serve twice.",
        ("a copy of a run's folder that is used at the same time", "a folder that was put back from a backup"),
        "serve from one folder at a time, the newest",
    ),
    "group-broken": _of(
        "Another process of this party is gone, or does not answer.",
        ("it was killed, or ran out of memory",),
        "torchrun starts the group again, and the run goes on from its checkpoint: --max-restarts",
    ),
    "worker-lost": _of(
        "A process that computed a run died.",
        ("too little memory for so many runs at once",),
        "the same command again goes on; with fewer --workers",
    ),
}

EXPLANATIONS: dict[str, Explanation] = _OF_DATA | _OF_RUNS | _OF_ALIGNMENT | _OF_NETWORKS | _OF_THE_WIRE | _OF_ANSWERS
