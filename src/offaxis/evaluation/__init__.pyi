from offaxis.evaluation.evaluating import evaluate as evaluate
from offaxis.evaluation.protocols import POOLS as POOLS
from offaxis.evaluation.protocols import sets_for as sets_for
from offaxis.evaluation.records import NetworkRecord as NetworkRecord
from offaxis.evaluation.records import Result as Result
from offaxis.evaluation.results import Results as Results
from offaxis.evaluation.store import Store as Store
